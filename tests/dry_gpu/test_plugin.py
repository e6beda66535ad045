"""The plugin's table of counted bytes."""

import pytest

from tests.dry_gpu import plugin


def test_rows_of_tests_that_share_a_name(monkeypatch):
    monkeypatch.setattr(plugin, "_rows", {})
    for file in ("training", "experts"):
        test = f"tests/dry_gpu/test_{file}.py::test_fp8"
        report = pytest.TestReport(test, (file, 1, test), {}, "passed", None, "call")
        report.user_properties = [("counted", {file: [1, 1]})]
        plugin.pytest_runtest_logreport(report)
    assert plugin._rows == {
        "training: fp8": {"training": [1, 1]},
        "experts: fp8": {"experts": [1, 1]},
    }
