"""Pytest plugin of the MPI tier: the session fixture, world-size selection, failing together."""

from __future__ import annotations

import os
import sys

import pytest

from verl_hpc.runtime.session import Session

session: Session | None = None
ON_EVERY_PUSH = {2, 4}


@pytest.hookimpl(tryfirst=True)  # before slow tests are skipped or selected
def pytest_collection_modifyitems(config, items):
    """Keep the tests that want as many ranks as there are; most are slow on all but one size."""
    assert session is not None
    kept, dropped = [], []
    for item in items:
        wanted = item.get_closest_marker("world")
        if wanted is not None and session.world.size not in wanted.args:
            dropped.append(item)
            continue
        kept.append(item)
        often = sizes_of_every_push(wanted)
        if session.world.size not in often:
            reason = f"without --slow it runs on {' or '.join(map(str, often))} ranks"
            item.add_marker(pytest.mark.slow(reason=reason))
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def sizes_of_every_push(wanted: pytest.Mark | None) -> list[int]:
    """The world sizes that a test runs on without --slow.

    A test for several sizes runs on the larger of 2 and 4, whose layouts combine those of fewer
    ranks. Marked `each_push=True` it runs on all of its sizes, because each has cases of its own;
    marked `often=2` on two ranks, because two show what it is about at half the cost.

    Args:
        wanted: the test's `world` marker; None if it runs on any number of ranks.
    """
    if wanted is None:
        return [max(ON_EVERY_PUSH)]
    if wanted.kwargs.get("each_push"):
        return list(wanted.args)
    if "often" in wanted.kwargs:
        return [wanted.kwargs["often"]]
    return [max(ON_EVERY_PUSH.intersection(wanted.args), default=min(wanted.args))]


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
