"""Freed host memory is used again without page faults."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys, torch
from verl_hpc.runtime.host_memory import keep_freed
print(keep_freed())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def touch():
    size = int(sys.argv[1])
    return [torch.empty(size, dtype=torch.uint8).fill_(1) for _ in range((1 << 27) // size)]
for _ in range(10):  # small pieces cut up what is free at first
    touch()
before = faults()
for _ in range(4):
    touch()
print(faults() - before)
"""
_PAGES = 4 * (1 << 27) // os.sysconf("SC_PAGESIZE")


def _run(size=1 << 22, **variables):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _PROGRAM, str(size)]
    found = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, check=True
    )
    is_kept, faults = found.stdout.split()
    return is_kept == "True", int(faults)


@pytest.mark.parametrize("size", [1 << 22, 1 << 26])
def test_most_freed_pages_are_used_again(size):
    is_kept, faults = _run(size)
    if not is_kept:
        pytest.skip("this system's malloc has no mallopt")
    assert faults < _PAGES / 4


def test_what_the_user_has_set_stays():
    is_kept, faults = _run(MALLOC_MMAP_THRESHOLD_="1000000")
    assert not is_kept
    assert faults >= _PAGES / 2
