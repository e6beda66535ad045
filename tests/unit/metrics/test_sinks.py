"""Sinks that a run opens, and those that fail."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import pytest

from verl_hpc.config.trackers import MetricsConfig
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.sinks import Sinks, open_sinks
from verl_hpc.runtime import terminal


class Recorder:
    """Keeps all calls."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def stage(self, name: str) -> None:
        self.told.append(name)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append((step, dict(values)))

    def close(self) -> None:
        self.told.append("closed")


class FullDisk(Recorder):
    """Fails at every step, and at its end."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        super().write(step, values)
        raise OSError("no space left")

    def close(self) -> None:
        super().close()
        raise OSError("no space left")


def test_every_sink_is_told_everything_and_closed_by_an_error_of_the_run():
    recorders = [Recorder(), Recorder()]
    with pytest.raises(ZeroDivisionError), Sinks(recorders) as sinks:
        sinks.stage("rollout")
        sinks.write(1, {"actor/lr": 0.1})
        raise ZeroDivisionError
    for recorder in recorders:
        assert recorder.told == ["rollout", (1, {"actor/lr": 0.1}), "closed"]


def test_a_failing_sink_is_reported_once_closed_and_dropped(caplog):
    broken, sound = FullDisk(), Recorder()
    with caplog.at_level(logging.WARNING), Sinks([broken, sound]) as sinks:
        for step in range(3):
            sinks.write(step, {})
    assert broken.told == [(0, {}), "closed"]
    assert sound.told == [(0, {}), (1, {}), (2, {}), "closed"]
    (record,) = caplog.records
    assert record.getMessage() == "FullDisk is dropped: OSError('no space left')"


@pytest.mark.parametrize("mode", ["auto", "lines", "off"])
def test_lines_where_stdout_is_no_terminal_unless_they_are_off(mode, tmp_path, capsys):
    with open_sinks(MetricsConfig(terminal=mode), tmp_path, 5) as sinks:
        sinks.stage("rollout")
        sinks.write(1, {"sft/loss": 2.5})
    assert capsys.readouterr().out == ("" if mode == "off" else "step 1/5 | loss 2.5\n")
    assert list(tmp_path.iterdir()) == []


def test_auto_is_live_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with open_sinks(MetricsConfig(), tmp_path / "demo", 5, recipe="rl", resumed_from=2) as sinks:
        sinks.stage("rollout")
    out = capsys.readouterr().out
    assert "demo  rl" in out and "step 2/5" in out


def test_auto_is_live_where_the_launcher_has_a_terminal(tmp_path, capsys, monkeypatch):
    """Ranks that `--ranks` has started print into a pipe."""
    monkeypatch.setenv("COLUMNS", "70")
    with monkeypatch.context() as launcher:
        launcher.setattr(sys.stdout, "isatty", lambda: True)
        variables = terminal.for_ranks()
    assert terminal.for_ranks() == {} and not terminal.is_terminal()
    monkeypatch.delenv("COLUMNS")
    for name in variables:
        monkeypatch.setenv(name, "90")
    with open_sinks(MetricsConfig(), tmp_path / "demo", 5, recipe="rl") as sinks:
        sinks.write(1, {"sft/loss": 2.5})
    lines = capsys.readouterr().out.splitlines()
    (top, *_) = [line for line in lines if "╭" in line]
    assert len(top[top.index("╭") : top.index("╮") + 1]) == 90


def test_lines_fit_the_columns_that_the_environment_says(tmp_path, capsys, monkeypatch):
    values = {"sft/loss": 2.5, "timing_s/step": 2.0, "timing_s/update": 2.0}
    for columns, expected in (
        ("", "step 1/5 | loss 2.5 | 2.0s (update 100%) | eta 8.0s"),
        ("51", "step 1/5 | loss 2.5 | 2.0s (update 100%) | eta 8.0s"),
        ("50", "step 1/5 | loss 2.5 | 2.0s | eta 8.0s"),
        ("36", "step 1/5 | 2.0s | eta 8.0s"),
        ("5", "step 1/5 | 2.0s | eta 8.0s"),
        ("wide", "step 1/5 | loss 2.5 | 2.0s (update 100%) | eta 8.0s"),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        with open_sinks(MetricsConfig(), tmp_path, 5) as sinks:
            sinks.write(1, values)
        assert capsys.readouterr().out == f"{expected}\n"


def test_a_missing_package_is_an_error_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(
        ConfigError, match=r"metrics\.tensorboard: .*pip install 'verl_hpc\[track\]'"
    ):
        open_sinks(MetricsConfig(tensorboard=True), tmp_path, 5)
