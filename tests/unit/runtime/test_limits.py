"""Limits of a process are raised as far as it may; what GPUs need more than that is named."""

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


LEAST = {"AS": HOST + GPUS, "MEMLOCK": 2**30}


def test_what_gpus_need(limited):
    """tests/unit/doctor/nodes_in_words.txt has what is said of less."""
    assert limits.trouble(with_infiniband=True, gpu_bytes=GPUS) is None
    for name, least in LEAST.items():
        limited |= LEAST
        assert limits.trouble(with_infiniband=True, gpu_bytes=GPUS) is None
        limited[name] = least - 1
        assert limits.trouble(with_infiniband=True, gpu_bytes=GPUS) is not None
    assert limits.trouble(with_infiniband=False, gpu_bytes=GPUS) is None, "without InfiniBand"


def test_the_page_that_limits_point_to_has_the_paragraph():
    page, _, heading = limits.PAGE.partition(", ")
    assert f"## {heading}\n" in (ROOT / page).read_text()
