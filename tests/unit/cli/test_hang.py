"""The verb hang, as text, and where it refuses."""

import json

import pytest

from tests.unit.cli.status_runs import beat, make_run
from verl_hpc.cli.hang import as_json, as_text
from verl_hpc.runs.ranks import Progress, Ranks, write_ranks
from verl_hpc.runs.stacks.stack import STOPPED, Frame, Stack, Thread

CALLS = tuple(Frame(f"call_{i}", "/x/reward.py", i) for i in range(15))
WAIT = Frame("wait", "/x/verl_hpc/runtime/channel.py", 38)


def progress(rank, **fields):
    place = {"count": 7, "operator": "reward", "seconds": 300.0, "num_waits": 20, "waited_s": 290.0}
    return Progress(rank=rank, host=f"n{rank // 2}", pid=100 + rank, **(place | fields))


LATE = progress(2, num_waits=19, waited_s=0.0)
RANKS = Ranks(
    1000.0, 10.0, 120.0, "4711", (progress(0), progress(1), LATE, progress(3, silent_s=50.0))
)
DOG = Thread("verl_hpc-watchdog", (Frame("_run", "/x/watchdog.py", 3),))
STACKS = [
    Stack(0, "n0", 100, (Thread("MainThread", (WAIT,)),)),
    Stack(1, "n0", 101, (Thread("MainThread", (WAIT,)),)),
    Stack(2, "n1", 102, (Thread("MainThread", CALLS), DOG), "the process is in state I"),
    Stack(3, "n1", 103, problem="no process 103 on n1: the rank is gone"),
]


def test_the_text(tmp_path):
    lines = as_text(tmp_path, RANKS, STACKS, 1004.0).splitlines()
    assert lines[:6] == [
        f"{tmp_path}: 4 ranks on 2 nodes, as of 4.0s ago",
        "silent, no Python code runs in them: rank 3",
        "late: rank 2 on n1, in 'reward' for 5m 00s",
        "",
        "rank 2 on n1: in reward",
        "  (the process is in state I)",
    ]
    assert lines[6] == "    call_0   /x/reward.py:0"
    assert lines[18:] == [
        "    ... and 3 outer calls; --full shows them",
        "",
        "ranks 0-1: in reward, waiting for other ranks",
        "    wait  /x/verl_hpc/runtime/channel.py:38",
        "",
        "rank 3 on n1: last wrote, 54.0s ago, that it was in reward",
        "  (no process 103 on n1: the rank is gone)",
    ]


def test_all_of_it(tmp_path):
    text = as_text(tmp_path, RANKS, STACKS, 1100.0, full=True)
    assert "call_14" in text and "outer calls" not in text
    assert "  verl_hpc-watchdog of rank 2\n    _run  /x/watchdog.py:3" in text
    assert "operators below are those of 1m 40s ago, when rank 0 last heard from all ranks" in text
    punctual = Ranks(1000.0, 10.0, 120.0, None, (progress(0), progress(1)))
    assert "no rank is late" in as_text(tmp_path, punctual, STACKS[:2], 1000.0)


def test_an_operator_that_a_rank_was_stopped_behind_is_not_where_it_is(tmp_path):
    """SIGSTOP, a moment before it would have written again; others are at step 15."""
    old = progress(1, count=1, operator="read model, data and reward", waited_s=0.0, silent_s=9.0)
    ranks = Ranks(1000.0, 10.0, 120.0, None, (progress(0), old))
    stopped = Stack(1, "n0", 101, (Thread("MainThread", CALLS[:1]),), STOPPED)
    text = as_text(tmp_path, ranks, [STACKS[0], stopped], 1004.0)
    assert "rank 0 on n0: in reward, waiting" in text
    words = "that it was in read model, data and reward"
    assert f"rank 1 on n0: last wrote, 13.0s ago, {words}\n" in text
    assert "late: rank 1 on n0, in 'read model, data and reward' for 5m 00s" in text
    later = as_text(tmp_path, ranks, [STACKS[0], stopped], 1060.0)
    words = "that it was in 'read model, data and reward'"
    assert f"late: rank 1 on n0, which last wrote, 1m 09s ago, {words}\n" in later


def test_json(tmp_path):
    found = json.loads(as_json(tmp_path, RANKS, STACKS, 1004.0))
    assert found["age_s"] == 4.0
    assert [rank["late"] for rank in found["ranks"]] == [False, False, True, False]
    assert [rank["told_s"] for rank in found["ranks"]] == [4.0, 4.0, 4.0, 54.0]
    assert found["ranks"][2]["threads"][0]["calls"][1] == ["call_1", "/x/reward.py", 1]


@pytest.fixture
def run(here):
    return make_run(here / "runs", "ppo")


def test_a_run_that_is_over(run, refuses):
    beat(run, "end", 3, outcome="finished")
    write_ranks(run, RANKS)
    assert "is not under way (finished): no rank to look at" in refuses("hang", "ppo")


def test_ranks_that_are_not_known_or_out_of_reach(run, refuses, called):
    assert "runs/ppo has no ranks.json" in refuses("hang")
    write_ranks(run, Ranks(1000.0, 10.0, 120.0, None, (progress(0),)))
    status, out, _ = called("hang", "ppo")
    assert status == 1 and "not reached: on another machine than" in out
