"""Options and selection that all tiers share."""

import pytest

from verl_hpc.runtime.garbage import pause_collection, resume_collection

pause_collection()


def pytest_collection_finish():
    # Modules of tests, and the libraries that they import, live to the end.
    resume_collection()


def pytest_runtest_teardown(item, nextitem):
    # What a module of tests has imported lives to the end, too, and each full collection costs
    # seconds where it must look at all of it.
    if nextitem is None or nextitem.path != item.path:
        resume_collection()


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run what is marked slow")


def pytest_collection_modifyitems(config, items):
    # Else the last worker would be left alone with a test of minutes.
    items.sort(key=_most_seconds, reverse=True)
    if config.getoption("--slow"):
        return
    for item in items:
        slow = item.get_closest_marker("slow")
        if slow is not None:
            reason = slow.kwargs.get("reason", "slow; run with --slow")
            item.add_marker(pytest.mark.skip(reason=reason))


def _most_seconds(item):
    """Seconds that a test asks for, or 0 if the default is enough for it."""
    asked = item.get_closest_marker("timeout")
    return asked.args[0] if asked is not None else 0
