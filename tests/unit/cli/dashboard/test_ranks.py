"""Ranks that are late."""

from verl_hpc.cli.dashboard.parts import late_part
from verl_hpc.runs.ranks import Progress, Ranks, write_ranks


def test_late_ranks_are_told(tmp_path):
    assert late_part(tmp_path) == ""
    ahead = Progress(0, 2, "reward", 5.0, "n0", 1)
    write_ranks(tmp_path, Ranks(1000.0, 10.0, 120.0, None, (ahead,)))
    assert late_part(tmp_path) == ""
    behind = Progress(1, 1, "rollout", 300.0, "n1", 2)
    write_ranks(tmp_path, Ranks(1000.0, 10.0, 120.0, None, (ahead, behind)))
    told = "<b>Late</b> rank 1: rank 1 on n1 in rollout for 5m 00s."
    assert told in late_part(tmp_path)
