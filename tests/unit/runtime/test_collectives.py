"""Collectives of messages: what they give, and in how many messages of how many bytes."""

import numpy as np
import pytest

from tests.unit.ranks import on_ranks
from verl_hpc.runtime import collectives
from verl_hpc.runtime.collectives import Peers

SIZES = (1, 2, 3, 4, 5, 7, 8, 13)


def text(rank):
    """A message of no bytes, of some that fit into an envelope, or of many."""
    return bytes([rank]) * (rank % 3 * 40)


@pytest.mark.parametrize("size", SIZES)
def test_what_every_rank_has_arrives_everywhere(size):
    everyone = [text(rank) for rank in range(size)]
    found = on_ranks(size, lambda control: control.allgather(text(control.rank)))
    assert found == [everyone] * size


@pytest.mark.parametrize("size", SIZES)
def test_rows_arrive_with_their_numbers(size):
    def work(control):
        rows = np.full((control.rank % 3, 2), control.rank, dtype=np.int16)
        found, counts = control.allgather_array(rows)
        return found.dtype, found.tolist(), counts.tolist()

    rows = [[rank, rank] for rank in range(size) for _ in range(rank % 3)]
    counts = [rank % 3 for rank in range(size)]
    assert on_ranks(size, work) == [(np.int16, rows, counts)] * size


@pytest.mark.parametrize("size", SIZES)
def test_roots_of_all_kinds(size):
    def work(control):
        heard = [
            control.broadcast(text(root) if control.rank == root else None, root)
            for root in range(size)
        ]
        return heard, [control.gather(text(control.rank), root) for root in range(size)]

    everyone = [text(rank) for rank in range(size)]
    for rank, (heard, gathered) in enumerate(on_ranks(size, work)):
        assert heard == everyone
        assert gathered == [everyone if rank == root else [] for root in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_values_are_combined(size):
    def work(control):
        union = control.merge({text(control.rank)}, lambda one, other: one | other)
        return control.max(-control.rank), union, control.any(control.rank == size - 1)

    everything = {text(rank) for rank in range(size)}
    assert on_ranks(size, work) == [(0, everything, True)] * size


def test_ranks_exchange_what_both_know_of():
    def work(control):
        part = control.split(0 if control.rank else 1)
        received = np.empty(3, dtype=np.float32)
        if control.rank == 1:
            part.exchange([(3, np.arange(3, dtype=np.float32))], [])
        if control.rank == 2:
            part.exchange([], [])
        if control.rank == 3:
            part.exchange([], [(1, received)])
        return received.tolist()

    assert on_ranks(4, work)[3] == [0, 1, 2]


class Counted:
    """What one rank of many sends, while the others say what `said` has of each."""

    def __init__(self, rank, said):
        self.rank, self.said = rank, said
        self.sent = []
        self.peers = Peers(rank, len(said), self.exchange)

    def exchange(self, sends, receives):
        self.sent += [data.size for _, data in sends]
        for source, target in receives:
            if target.size == 64:
                distance = (source - self.rank) % len(self.said)
                parts = [
                    self.said[(source + i) % len(self.said)]
                    for i in range(min(distance, len(self.said) - distance))
                ]
                sizes = np.array([len(part) for part in parts], np.uint32)
                self.message = np.frombuffer(sizes.tobytes() + b"".join(parts), np.uint8)
                target[:8].view(np.int64)[0] = self.message.size
                target[8 : 8 + self.message.size] = self.message[:56]
            else:
                target[:] = self.message


@pytest.mark.parametrize("size, rounds", [(2, 1), (1000, 10), (4096, 12)])
def test_the_number_of_messages_is_that_of_bits(size, rounds):
    said = [bytes([rank % 256]) * 20 for rank in range(size)]
    one = Counted(7 % size, said)
    found, sizes = collectives.allgather(one.peers, np.frombuffer(said[one.rank], np.uint8))
    assert (found.tobytes(), sizes.tolist()) == (b"".join(said), [20] * size)
    assert one.sent.count(64) == rounds
    # A size and the bytes of every other rank, but for those that fit into envelopes.
    in_envelopes = {2: 1, 1000: 3, 4096: 3}[size]
    assert sum(n for n in one.sent if n != 64) == 24 * (size - 1 - in_envelopes)
