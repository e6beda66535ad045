"""Limits of a process are raised as far as it may; what GPUs need more than that is named."""

import re
import subprocess
import sys

import pytest

from tests.unit.cluster.requests import ROOT
from verl_hpc.runtime import limits

SHOW = """
import resource
from verl_hpc.runtime.limits import raise_limits
raise_limits()
print(*(resource.getrlimit(getattr(resource, f"RLIMIT_{n}"))[0] for n in ("NOFILE", "MEMLOCK")))
"""


def test_soft_limits_rise_to_the_hard_ones():
    shell = 'ulimit -Sn 128; ulimit -Hn 5000; ulimit -Sl 64; ulimit -Hl 4096; exec $0 -c "$1"'
    words = ["bash", "-c", shell, sys.executable, SHOW]
    assert subprocess.check_output(words, text=True).split() == ["5000", str(4096 * 1024)]


HOST, GPUS = 512 * 2**30, 320 * 2**30


@pytest.fixture
def limited(monkeypatch):
    """Limits of a node of 512 GiB; what is not named is without limit."""
    found = {}
    monkeypatch.setattr(limits, "machine_bytes", lambda: HOST)
    monkeypatch.setattr(limits, "limit_of", lambda name: found.get(name, float("inf")))
    return found


TOO_LOW = [
    ({"AS": 6e9}, "address space is limited to 5.6 GiB, .*, 832.0 GiB; take `ulimit -v` away"),
    ({"AS": HOST + GPUS - 1}, "address space is limited to 832.0 GiB"),
    ({"MEMLOCK": 65536}, "only 64 KiB may be locked in memory"),
]


@pytest.mark.parametrize("found, words", TOO_LOW)
def test_what_gpus_cannot_work_with(limited, found, words):
    limited |= found
    assert re.search(words, limits.trouble(with_infiniband=True, gpu_bytes=GPUS))
    if "MEMLOCK" in found:
        assert limits.trouble(with_infiniband=False, gpu_bytes=GPUS) is None


@pytest.mark.parametrize("found", [{"AS": HOST + GPUS}, {"AS": 2**47}, {"MEMLOCK": 2**30}, {}])
def test_limits_above_what_gpus_need(limited, found):
    limited |= found
    assert limits.trouble(with_infiniband=True, gpu_bytes=GPUS) is None


def test_the_page_that_limits_point_to_has_the_paragraph():
    page, _, heading = limits.PAGE.partition(", ")
    assert f"## {heading}\n" in (ROOT / page).read_text()
