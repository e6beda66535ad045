"""Verdicts on the limits of ranks."""

from verl_hpc.runtime.preflight.limits import judge_limits


def test_limits_that_are_enough():
    verdict = judge_limits({"n0": (20000, float("inf"), None), "n1": (5000, 2**30, None)})
    assert (verdict.state, verdict.found) == ("ok", "5000 open files, 1024 MiB of locked memory")


def test_too_few_files():
    verdict = judge_limits({"n0": (1024, float("inf"), None)})
    assert (verdict.state, verdict.found) == ("fails", "1024 open files, any locked memory")


def test_what_gpus_cannot_work_with_is_told_by_node():
    verdict = judge_limits({"n0": (9999, 2**40, None), "n1": (9999, 64, "only 64 KiB")})
    assert verdict.state == "fails"
    assert verdict.found == "n1: only 64 KiB"
