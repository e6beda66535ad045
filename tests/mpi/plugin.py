"""Pytest plugin of the MPI tier: the session fixture, world-size selection, failing together."""

from __future__ import annotations

import os
import sys

import pytest

from verl_hpc.runtime.session import Session

session: Session | None = None


def pytest_collection_modifyitems(config, items):
    """Keep the tests that want as many ranks as there are."""
    assert session is not None
    kept, dropped = [], []
    for item in items:
        wanted = item.get_closest_marker("world")
        fits = wanted is None or session.world.size in wanted.args
        (kept if fits else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


@pytest.fixture(scope="session")
def here():
    """This rank's session; entering every test is a barrier."""
    return session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    session.enter(item.nodeid)
    session.control.barrier()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        text = f"\n{session.world}: {item.nodeid} failed in {call.when}\n{report.longreprtext}\n"
        sys.stdout.flush()
        os.write(sys.stderr.fileno(), text.encode())
        session.job.abort(1)
    return report
