"""A browser, and a dashboard that serves an empty directory of runs."""

import os
import threading

import pytest

from tests.web.browser import Browser, missing
from verl_hpc.cli.dashboard.server import make_server

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
    with make_server(runs) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()
