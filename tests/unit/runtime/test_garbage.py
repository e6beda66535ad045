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


def test_what_start_up_made_is_not_looked_at_again():
    pause_collection()
    assert not gc.isenabled()
    kept = weakref.ref(Node())
    resume_collection()
    dropped = weakref.ref(Node())
    assert gc.isenabled()
    gc.collect()
    assert kept() is not None
    assert dropped() is None


def test_what_libraries_collect_while_it_is_paused_is_of_later_objects():
    pause_collection()
    kept = weakref.ref(Node())
    spare_what_exists()
    dropped = weakref.ref(Node())
    gc.collect()
    assert kept() is not None
    assert dropped() is None


def test_an_engine_that_is_built_later_keeps_no_garbage():
    dropped = weakref.ref(Node())
    spare_what_exists()
    gc.collect()
    assert dropped() is None
