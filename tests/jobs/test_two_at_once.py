"""Two runs of one name: the second is refused, and the first does not notice."""

import os
import signal

import pytest

from tests.jobs.launch import finish, ranks_of, start, succeeds, train, wait_until, write_config
from verl_hpc.checkpoint.store import complete_steps

HELD = """
import time
from pathlib import Path

def compute_score(**_):
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.05)
    return 0.5
"""


@pytest.mark.slow
def test_a_second_run_in_the_same_directory_is_refused_until_the_first_is_gone(tree, tmp_path):
    """The first is in its first step until the second has gone."""
    (tmp_path / "reward.py").write_text(HELD)
    (tmp_path / "hold").touch()
    reward = tree["reward"] | {"timeout_s": 3600}
    config = write_config(tmp_path / "config.yaml", tree | {"steps": 20, "reward": reward})
    words = ["-m", "verl_hpc", "train", "--config", config]
    root = tmp_path / "run/checkpoints"
    first = start(2, words)
    try:
        assert wait_until((tmp_path / "run/lock.json").exists, first)
        status, output = train(2, config)
        assert status == 1, output
        assert "ConfigError: " in output and "in use by process" in output
        assert "Traceback" not in output and "Free space" not in output
    finally:
        (tmp_path / "hold").unlink()
    assert wait_until(lambda: len(complete_steps(root)) > 1, first), "the first run has ended"
    for rank in ranks_of(first):
        os.kill(rank, signal.SIGKILL)
    again = start(2, words)
    finish(first, timeout=60)
    output = succeeds(again)
    assert not (tmp_path / "run/lock.json").exists()
    assert [p.name for p in root.iterdir() if "partial" in p.name] == []
