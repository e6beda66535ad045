"""A browser, and a dashboard that serves an empty directory of runs."""

import os

import pytest

from tests.dashboards import serving
from tests.web.browser import Browser, missing

REQUIRED = "VERL_HPC_REQUIRE_BROWSER"
"""Set it to 1 where the tier must not be skipped."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if (reason := missing()) is not None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, and {reason}")
        pytest.skip(reason)
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def server(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    with serving(runs) as running:
        yield running
