"""The oracle for schedules of sends and receives finds what NCCL would hang in."""

import pytest

from tests.unit.transfer.blocking import Launch, Wait, faults


def send(to, size=1, communicator="world"):
    return Launch([(to, size)], (), communicator)


def receive(frm, size=1, communicator="world"):
    return Launch((), [(frm, size)], communicator)


def both(to, frm):
    return Launch([(to, 1)], [(frm, 1)])


SENDS = {0: [send(1), send(2)], 1: [receive(0), receive(2)], 2: [send(1), receive(0)]}
RECEIVES = {0: [send(1), send(2)], 1: [receive(0), receive(2)], 2: [receive(0), send(1)]}
COMPLETES = {
    "a ring in one launch each": {r: [both((r + 1) % 4, (r - 1) % 4)] for r in range(4)},
    "two sends in turn": SENDS,
    "two receives in turn": RECEIVES,
    "each side begins with the other's": {0: [send(1), receive(1)], 1: [receive(0), send(0)]},
    "crossing, on two communicators": {
        0: [send(1, 1, "a"), receive(1, 1, "b"), Wait()],
        1: [send(0, 1, "b"), receive(0, 1, "a"), Wait()],
    },
    "a wait for what has a partner": {0: [send(1), Wait(0), send(1)], 1: [receive(0)] * 2},
    "nobody does anything": {0: [], 1: [Wait()]},
}
HANGS = {
    "a ring of sends first": {r: [send((r + 1) % 4), receive((r - 1) % 4)] for r in range(4)},
    "two sends swapped": {**SENDS, 0: SENDS[0][::-1]},
    "two receives swapped": {**RECEIVES, 1: RECEIVES[1][::-1]},
    "crossing, on one communicator": {0: [send(1), receive(1)], 1: [send(0), receive(0)]},
    "different communicators": {0: [send(1, 1, "a")], 1: [receive(0, 1, "b")]},
    "a wait before its partner's launch": {
        0: [send(1, 1, "a"), Wait(0), send(1, 1, "b")],
        1: [receive(0, 1, "b"), Wait(0), receive(0, 1, "a")],
    },
    "a send that nobody receives": {0: [send(1)], 1: []},
    "a receive that nobody sends": {0: [], 1: [receive(0)]},
}


@pytest.mark.parametrize("case", COMPLETES)
def test_what_completes(case):
    assert faults(COMPLETES[case]) == []


@pytest.mark.parametrize("case", HANGS)
def test_what_hangs(case):
    assert any("waits in its launch" in fault for fault in faults(HANGS[case]))


def test_who_waits_for_whom_is_told():
    assert faults(HANGS["two sends swapped"]) == [
        "rank 0 waits in its launch 0: sends to [2], receives from []",
        "rank 1 waits in its launch 0: sends to [], receives from [0]",
        "rank 2 waits in its launch 0: sends to [1], receives from []",
    ]


def test_sizes_that_differ_are_told():
    found = faults({0: [send(1, 8), send(1, 9)], 1: [receive(0, 8), receive(0, 8)]})
    assert found == ["rank 0 sends 9 bytes, and rank 1 expects 8"]


def test_messages_of_a_pair_keep_their_order():
    crossed = {0: [Launch([(1, 8), (1, 9)])], 1: [Launch((), [(0, 9), (0, 8)])]}
    assert len(faults(crossed)) == 2
