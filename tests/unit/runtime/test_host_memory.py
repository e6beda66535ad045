"""Freed host memory is used again without page faults."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys, torch
from verl_hpc.runtime.host_memory import keep_freed
print(keep_freed() is not None)
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


_GROWING = """
import os, torch
from verl_hpc.runtime.host_memory import keep_freed
freed = keep_freed()
small = []
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
begin = largest = resident()
for step in range(20):
    large = []
    for _ in range(3):
        large.append(torch.empty((1 << 26) * (50 + step) // 50, dtype=torch.uint8).fill_(1))
        small.append(torch.empty(50_000, dtype=torch.uint8).fill_(1))
    largest = max(largest, resident())
    del large
    if freed is not None:
        freed.limit()
print(freed is not None, largest - begin)
"""


def test_tensors_that_grow_bit_by_bit_leave_no_more_than_a_few_of_them():
    found = subprocess.run(
        [sys.executable, "-c", _GROWING], capture_output=True, text=True, check=True
    )
    is_kept, largest = found.stdout.split()
    if is_kept == "False":
        pytest.skip("this system's malloc has no mallopt, or the environment has set it")
    # A step has 3 tensors of at most 1.38 x 64 MiB. Without a limit five times as much is kept.
    assert int(largest) < 2 * 3 * 1.38 * (1 << 26)
