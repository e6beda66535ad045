"""`hang` reaches ranks on other nodes by a step of their job."""

import json
import os
import subprocess
import sys

from tests.slurm.runs import Run, set_pause, write_run
from verl_hpc.runs.ranks import read_ranks

LATE = 1
# Rank 0 does not pause, so that one rank is late.
REWARD = f"""
import os
import time


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    while os.environ["RANK"] == "{LATE}":
        time.sleep(0.1)  # here
    return 1.0
"""
LINE = 1 + REWARD.splitlines().index("        time.sleep(0.1)  # here")


def test_the_late_rank_of_another_node_is_named(lab, model, tmp_path):
    config = write_run(tmp_path, model, runtime={"late_after_s": 2})
    set_pause(tmp_path, 0)
    (tmp_path / "reward.py").write_text(REWARD)
    run = Run(lab, config).submit("reward.timeout_s=3600")

    def is_late():
        ranks = read_ranks(run.directory)
        return ranks is not None and [p.operator for p in ranks.late] == ["reward"]

    run.wait(is_late, "late")
    command = [sys.executable, "-m", "verl_hpc", "hang", run.directory, "--json"]
    environment = os.environ | lab.environment
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    finally:
        lab.run("scancel", run.job)
        run.wait_for_end()
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["host"] for rank in ranks] == ["n0", "n1"]
    assert [rank["late"] for rank in ranks] == [False, True]
    assert [rank["waits"] for rank in ranks] == [True, False]
    function, file, line = ranks[LATE]["threads"][0]["calls"][0]
    assert (function, line) == ("compute_score", LINE)
    assert file.endswith("reward.py")
    assert ranks[LATE]["operator"] == "reward"
