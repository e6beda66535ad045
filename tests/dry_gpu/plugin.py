"""Pytest plugin of the dry tier: every test is a fork of a process that has imported everything.

A test is one rank of a world of its own, and leaves nothing behind in libraries that keep their
groups, platforms and caches for good.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.dry_gpu import torch_cuda
from tests.dry_gpu.device import Gpu
from tests.dry_gpu.one_rank import COUNTED

_COLUMNS = ("most in an update", "most in a forward pass", "parameters", "gradients", "optimizer")
_MOST_SECONDS = 600
_rows: dict[str, dict[str, list[int]]] = {}


def pytest_addoption(parser):
    parser.addoption("--forks", type=int, default=2, help="tests at a time")
    parser.addoption("--ledger", action="store_true", help="print counted and planned bytes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.when == "call":
        item.user_properties.append(("counted", dict(COUNTED)))


def pytest_runtest_logreport(report):
    counted = dict(report.user_properties).get("counted")
    if counted and report.passed:
        file, _, test = report.nodeid.partition("::")
        _rows[f"{Path(file).stem}: {test}".replace("test_", "")] = counted


def pytest_terminal_summary(terminalreporter, config):
    """Print a table of what tests have counted, for docs/planning.md."""
    if not config.option.ledger:
        return
    terminalreporter.write_line(f"| GB, counted / ledger | {' | '.join(_COLUMNS)} |")
    terminalreporter.write_line("|---|" + "---:|" * len(_COLUMNS))
    for name, counted in sorted(_rows.items()):
        cells = [
            " / ".join(f"{number / 1e9:.2f}" for number in counted[column])
            for column in _COLUMNS
            if column in counted
        ]
        if len(cells) == len(_COLUMNS):
            terminalreporter.write_line(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")


@pytest.fixture
def gpu():
    """`gpu(rank, size)` is this process's device from then on; no work on it may be unordered."""
    entered = []

    def start(rank: int = 0, size: int = 1, per_node: int = 8) -> Gpu:
        assert not entered, "a process has one device"
        device = Gpu(rank, size, per_node)
        watching = torch_cuda.attach(device)
        watching.__enter__()
        entered.append((device, watching))
        return device

    yield start
    for device, watching in entered:
        watching.__exit__(None, None, None)
        assert not device.order.races, device.order.races


def pytest_runtestloop(session):
    if session.config.option.collectonly:
        return None
    waiting, running = list(session.items), {}
    with tempfile.TemporaryDirectory() as directory:
        while waiting or running:
            while waiting and len(running) < session.config.option.forks:
                item = waiting.pop(0)
                file = Path(directory) / str(len(waiting))
                running[_fork(item, file)] = item, file
            pid, status = os.waitpid(-1, 0)
            item, file = running.pop(pid)
            _log(item, file, status)
            if session.shouldfail or session.shouldstop:
                waiting.clear()
    return True


def _fork(item: pytest.Item, file: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    signal.alarm(_MOST_SECONDS)  # a test that reads what it waits for never ends
    try:
        reports = runtestprotocol(item, nextitem=None, log=False)
        hook = item.config.hook
        told = [hook.pytest_report_to_serializable(config=item.config, report=r) for r in reports]
        file.write_text(json.dumps(told))
        status = 0
    finally:
        os._exit(status)


def _log(item: pytest.Item, file: Path, status: int) -> None:
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, file, status):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _reports(item: pytest.Item, file: Path, status: int) -> Iterator[pytest.TestReport]:
    if status:
        text = f"the test's process ended with status {status}"
        yield pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        return
    for told in json.loads(file.read_text()):
        hook = item.config.hook
        report = hook.pytest_report_from_serializable(config=item.config, data=told)
        if isinstance(report.longrepr, list):  # of a skipped test
            report.longrepr = tuple(report.longrepr)
        yield report
