"""Late ranks: who they are, the report about them, and a watchdog over a real store."""

import dataclasses
import re
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.waiting import wait_for
from verl_hpc.runs.ranks import Progress, late_ranks
from verl_hpc.runtime.watchdog import Watchdog, describe


def at(rank, count, seconds, operator="rollout"):
    return Progress(rank, count, operator, seconds, f"n{rank // 4}")


ranks = st.lists(st.tuples(st.integers(0, 4), st.floats(0, 10)), min_size=1, max_size=8)


@given(ranks, st.floats(0, 10))
def test_late_means_behind_and_long(places, late_after):
    progress = [at(rank, count, seconds) for rank, (count, seconds) in enumerate(places)]
    expected = {
        p.rank
        for p in progress
        if p.seconds > late_after and any(other.count > p.count for other in progress)
    }
    late = late_ranks(progress, late_after)
    assert {p.rank for p in late} == expected
    assert late == sorted(late, key=lambda p: (p.count, p.rank))


def test_the_report():
    ahead = [at(0, 6, 130, "update"), at(1, 6, 129, "update")]
    progress = [*ahead, at(5, 5, 131.4, "reward"), at(6, 4, 200, "rollout")]
    assert describe(late_ranks(progress, 120), progress) == (
        "verl_hpc: late ranks:\n"
        "  rank 6 on n1: in 'rollout' for 200 s\n"
        "  rank 5 on n1: in 'reward' for 131 s\n"
        "  2 of 4 ranks wait in 'update'\n"
    )


def placed(rank, count, place, waits_for):
    return Progress(
        rank, count, f"rollout to {place}", 130, "n0",
        waited_s=130.0, waits_for=waits_for, places=place,
    )  # fmt: skip


def test_the_report_of_placements():
    progress = [
        Progress(0, 40, "rollout", 131, "n0", places="rollout"),
        placed(1, 22, "critic", "0-1"),
        placed(2, 20, "reward", "0, 2"),
        placed(3, 20, "reward", "0, 3"),
    ]
    assert describe(late_ranks(progress, 120), progress) == (
        "verl_hpc: late ranks:\n"
        "  rank 0 on n0: in 'rollout' for 131 s\n"
        "  2 of 4 ranks wait in 'rollout to reward'\n"
        "  1 of 4 ranks wait in 'rollout to critic'\n"
    )


def test_a_late_rank_that_has_fallen_silent_may_be_elsewhere():
    old = dataclasses.replace(at(1, 1, 200), silent_s=40.0)
    text = describe([old], [at(0, 2, 0, "update"), old], patience_s=30.0)
    assert "  rank 1 on n0: last wrote, 40 s ago, that it was in 'rollout'\n" in text


def test_a_long_report_is_cut():
    progress = [at(0, 2, 0, "update"), *(at(r, 1, 200) for r in range(1, 21))]
    text = describe(late_ranks(progress, 120), progress)
    assert text.count("in 'rollout' for") == 8
    assert "and 12 more" in text
    assert "1 of 21 ranks wait in 'update'" in text


def control(rank, size):
    """The part of a control plane that a watchdog looks at; nobody waits there."""
    waits = {"num_waits": 0, "waiting_since": None, "waiting_for": ()}
    return SimpleNamespace(rank=rank, size=size, **waits)


def connection(port, is_master=False):
    return dist.TCPStore(
        "127.0.0.1", port, 2, is_master, timedelta(seconds=20), wait_for_workers=False
    )


@pytest.fixture
def connect():
    """Opens connections to a store of this process, as a job's ranks do."""
    master = connection(0, is_master=True)
    return lambda: connection(master.port)


def test_a_late_rank_is_told_once_an_episode(connect):
    told = []
    dogs = [Watchdog(control(rank, 2), f"n{rank}", 0.1, told.append) for rank in (0, 1)]
    first, second = dogs
    for dog in dogs:
        dog.enter("rollout")
        dog.start(connect())
    try:
        first.enter("reward")
        wait_for(lambda: told)
        assert re.fullmatch(
            "verl_hpc: late ranks:\n"
            r"  rank 1 on n1: in 'rollout' for \d+ s\n"
            "  1 of 2 ranks wait in 'reward'\n",
            told[0],
        )
        time.sleep(0.3)
        assert len(told) == 1, "the same lateness is told once"

        second.enter("reward")
        second.enter("update")
        wait_for(lambda: len(told) == 2)
        assert "rank 0 on n0: in 'reward'" in told[1]
        first.enter("update")
        time.sleep(0.3)
        assert len(told) == 2, "nobody is late when all are equally far"
    finally:
        for dog in dogs:
            dog.stop()


def test_ranks_that_have_not_published_yet_are_waited_for(connect):
    told = []
    dog = Watchdog(control(0, 2), "n0", 0.1, told.append)
    dog.enter("rollout")
    dog.start(connect())
    time.sleep(0.2)
    late = Watchdog(control(1, 2), "n1", 0.1, told.append)
    late.start(connect())
    try:
        wait_for(lambda: told)
        assert "rank 1 on n1: in 'start-up'" in told[0]
    finally:
        dog.stop()
        late.stop()


def test_ranks_are_written_once_there_is_a_directory_not_at_the_next_beat(connect, tmp_path):
    beats = []
    dog = Watchdog(control(0, 1), "n0", 60)
    dog.interval_s = 3600
    dog.errands.append(beats.append)
    dog.start(connect())
    try:
        wait_for(lambda: beats)
        dog.write_into(tmp_path)
        wait_for((tmp_path / "ranks.json").exists)
    finally:
        dog.stop()


def test_a_store_that_goes_away_does_not_end_the_thread_or_the_rank():
    told = []
    master = connection(0, is_master=True)
    dog = Watchdog(control(0, 1), "n0", 0.04, told.append)
    dog.start(connection(master.port))
    del master
    time.sleep(0.1)
    assert dog._thread.is_alive()
    dog.stop()
    assert not dog._thread.is_alive()
    assert told == []
