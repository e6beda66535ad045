"""Options and selection that all tiers share."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run what is marked slow")


def pytest_collection_modifyitems(config, items):
    # Else the last worker would be left alone with a test of minutes.
    items.sort(key=_most_seconds, reverse=True)
    if config.getoption("--slow"):
        return
    slow = pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(slow)


def _most_seconds(item):
    """That a test asks for; 0 of those that the default is enough for."""
    asked = item.get_closest_marker("timeout")
    return asked.args[0] if asked is not None else 0
