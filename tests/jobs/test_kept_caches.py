"""Compile caches in whole jobs: the life after a kill has what the one before compiled."""

import pytest

from tests.jobs.launch import finish, kill_rank, start, succeeds, wait_until, write_config

REWARD = """
import os, time
from pathlib import Path

def compute_score(**_):
    kernel = Path(os.environ["VERL_HPC_CACHE"], "inductor/3g/c3g.so")
    if "SECOND" in os.environ:
        assert kernel.read_bytes() == b"machine code"
        return 1.0
    if any(Path(os.environ["VERL_HPC_KEPT_CACHES"]).glob("*.tar")):
        time.sleep(600)  # until it is killed
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_bytes(b"machine code")
    return 1.0
"""
"""It stands in for a compiler, since ranks on CPUs compile nothing."""


@pytest.mark.slow
def test_the_life_after_a_kill_has_what_the_one_before_compiled(tree, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    changes = {"steps": 2, "runtime": {"reward_processes": 0}}
    config = write_config(tmp_path / "config.yaml", tree | changes)
    kept = tmp_path / "kept"

    def life(name, **environment):
        directories = {"VERL_HPC_CACHE": str(tmp_path / name), "VERL_HPC_KEPT_CACHES": str(kept)}
        words = ["-m", "verl_hpc", "train", "--config", config, "metrics.terminal=lines"]
        return start(2, words, **directories, **environment)

    first = life("first")
    assert wait_until(lambda: any(kept.glob("*/*.tar")), first)
    assert kill_rank(first, 1)
    assert finish(first)[0] != 0
    output = succeeds(life("second", SECOND="1"))
    assert "files of compile caches: 1, from " in output
    assert [path.suffix for path in kept.glob("*/*")] == [".tar"]
