import gc
import weakref

import pytest

from verl_hpc.runtime.garbage import pause_collection, resume_collection, spare_what_exists


@pytest.fixture(autouse=True)
def _as_before():
    yield
    gc.enable()
    gc.unfreeze()


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("spare", [resume_collection, spare_what_exists])
def test_what_start_up_made_is_not_looked_at_again(spare):
    """Libraries may collect while collection is paused: only later objects are freed."""
    pause_collection()
    assert not gc.isenabled()
    kept = weakref.ref(Node())
    spare()
    dropped = weakref.ref(Node())
    assert gc.isenabled() is (spare is resume_collection)
    gc.collect()
    assert kept() is not None and dropped() is None


def test_an_engine_that_is_built_later_keeps_no_garbage():
    dropped = weakref.ref(Node())
    spare_what_exists()
    gc.collect()
    assert dropped() is None
