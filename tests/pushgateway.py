"""A real Pushgateway, of Debian's package prometheus-pushgateway."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import pytest

from verl_hpc.testing.slurm_lab.processes import wait_for

REQUIRED = "VERL_HPC_REQUIRE_PUSHGATEWAY"
"""Set it to 1 where tests that need one must not be skipped."""

NOTHING_OF_OTHERS = "--persistence.file="
"""Debian's default makes each one start from the samples of the last one."""


@contextmanager
def pushgateway() -> Iterator[str]:
    """Its address, at a port that it chooses; without such a program the test is skipped."""
    program = shutil.which("prometheus-pushgateway")
    if program is None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, and launch/install.sh .venv pushgateway was not called")
        pytest.skip("no prometheus-pushgateway here; Debian has a package of that name")
    with TemporaryFile("w+") as log:
        words = [program, "--web.listen-address=127.0.0.1:0", NOTHING_OF_OTHERS]
        process = subprocess.Popen(words, stderr=log)
        try:
            yield f"http://{_address(log)}"
        finally:
            process.terminate()
            process.wait(10)


def _address(log) -> str:
    found: list[str] = []

    def listens() -> bool:
        log.seek(0)
        found.extend(re.findall(r'"Listening on" address=(\S+)\n', log.read()))
        return bool(found)

    assert wait_for(listens, 30)
    return found[0]


def has_now(gateway: str) -> str:
    """All samples of the gateway, in Prometheus' text format."""
    with urllib.request.urlopen(f"{gateway}/metrics", timeout=5) as answer:
        return answer.read().decode()
