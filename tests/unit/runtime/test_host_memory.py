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
def touch(size):
    return [torch.empty(size, dtype=torch.uint8).fill_(1) for _ in range((1 << 27) // size)]
for size in map(int, sys.argv[1:]):
    for _ in range(10):  # small pieces cut up what is free at first
        touch(size)
    before = faults()
    for _ in range(4):
        touch(size)
    print(faults() - before)
"""
_PAGES = 4 * (1 << 27) // os.sysconf("SC_PAGESIZE")


def _run(*sizes, **variables):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _PROGRAM, *map(str, sizes)]
    found = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, check=True
    )
    is_kept, *faults = found.stdout.split()
    return is_kept == "True", [int(count) for count in faults]


def test_most_freed_pages_are_used_again():
    is_kept, faults = _run(1 << 22, 1 << 26)
    if not is_kept:
        pytest.skip("this system's malloc has no mallopt")
    assert max(faults) < _PAGES / 4


def test_what_the_user_has_set_stays():
    is_kept, (faults,) = _run(1 << 22, MALLOC_MMAP_THRESHOLD_="1000000")
    assert not is_kept
    assert faults >= _PAGES / 2
