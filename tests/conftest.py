"""Options and selection that all tiers share."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    slow = pytest.mark.skip(reason="takes minutes; run with --slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(slow)
