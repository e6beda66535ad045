"""Quick cases of the verb reproduce agree with what is published."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = ("nemo_rl_invariants", "router_replay", "slime_bitwise_rerun", "trl_steps")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", QUICK)
def test_a_case_agrees(name, tmp_path):
    words = [sys.executable, "-m", "verl_hpc", "reproduce", name, "--directory", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "not run" not in done.stdout
