"""Assign the messages of an exchange to rounds, so that few ranks wait for others.

In a round a rank sends at most one message and receives at most one: a round is a matching of
senders and receivers, and the rounds together are an edge colouring of the graph of messages.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

Pair = tuple[int, int]
"""(sending rank, receiving rank)."""
Run = tuple[int, int]
"""(first round, number of rounds): messages of one pair in consecutive rounds."""


def rounds_of(messages: Mapping[Pair, int]) -> dict[Pair, list[Run]]:
    """The rounds of each pair's messages, in order.

    Rank 0 has two messages for 1 and one for 2, rank 1 has one for 2, rank 2 has one for 0::

        round 0:  0 -> 1   1 -> 2   2 -> 0
        round 1:  0 -> 1
        round 2:  0 -> 2

    At least as many rounds are needed as one rank has messages to send, or to receive; that many
    are enough (D. Konig, 1916). This takes pairs greedily, those first whose ends have most left to
    do, and looks again after each half of what a pair has left. It is at that bound, or a few per
    cent above it, for the layouts of this package, and at most twice the bound for any graph.
    Parts of the graph that share no sender and no receiver are alike in large layouts: each kind is
    worked out once.

    Args:
        messages: how many there are of each pair.
    """
    known: dict[tuple[tuple[Pair, int], ...], dict[Pair, list[Run]]] = {}
    rounds: dict[Pair, list[Run]] = {}
    for pairs in _parts(messages):
        senders, receivers = (_numbers(pair[end] for pair in pairs) for end in (0, 1))
        # Numbers keep the order of ranks, by which the greedy choice breaks ties.
        numbered = {pair: (senders[pair[0]], receivers[pair[1]]) for pair in pairs}
        kind = tuple((numbered[pair], messages[pair]) for pair in pairs)
        if kind not in known:
            known[kind] = _Greedy(dict(kind)).run()
        # Looked up once: a kind is as long as its part, and each look-up hashes all of it.
        runs = known[kind]
        rounds |= {pair: [*runs[number]] for pair, number in numbered.items()}
    return {pair: rounds[pair] for pair in sorted(rounds)}


def _numbers(ranks: Iterable[int]) -> dict[int, int]:
    return {rank: number for number, rank in enumerate(sorted(set(ranks)))}


def _parts(messages: Mapping[Pair, int]) -> Iterator[list[Pair]]:
    """Pairs with messages, in order, by the connected part of the graph of senders and
    receivers."""
    pairs = sorted(pair for pair, n in messages.items() if n)
    of_sender: dict[int, list[Pair]] = defaultdict(list)
    of_receiver: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        of_sender[pair[0]].append(pair)
        of_receiver[pair[1]].append(pair)
    seen: set[Pair] = set()
    for pair in pairs:
        part, reached = [], [pair]
        while reached:
            one = reached.pop()
            if one not in seen:
                seen.add(one)
                part.append(one)
                # Each list is walked once.
                reached += of_sender.pop(one[0], []) + of_receiver.pop(one[1], [])
        if part:
            yield sorted(part)


class _Greedy:
    def __init__(self, messages: Mapping[Pair, int]) -> None:
        self.left = {pair: n for pair, n in sorted(messages.items()) if n}
        self.to_send: dict[int, int] = defaultdict(int)
        self.to_receive: dict[int, int] = defaultdict(int)
        self.receivers: dict[int, list[int]] = defaultdict(list)
        """For each sender, the receivers to which it still has messages to send."""
        self.senders: dict[int, list[int]] = defaultdict(list)
        for (sender, receiver), n in self.left.items():
            self.to_send[sender] += n
            self.to_receive[receiver] += n
            self.receivers[sender].append(receiver)
            self.senders[receiver].append(sender)
        self.sending: set[int] = set()
        self.receiving: set[int] = set()
        self.found: dict[Pair, list[Run]] = {pair: [] for pair in self.left}

    def run(self) -> dict[Pair, list[Run]]:
        # Event simulation: `ends` holds, by round, when the pair under way frees its two ranks.
        ends: list[tuple[int, Pair]] = []
        candidates = set(self.left)
        now = 0
        while True:
            for pair in sorted(candidates, key=self._priority):
                if pair[0] not in self.sending and pair[1] not in self.receiving:
                    heapq.heappush(ends, (now + self._begin(pair, now), pair))
            if not ends:
                return self.found
            now = ends[0][0]
            candidates = self._free_after(ends, now)

    def _priority(self, pair: Pair) -> tuple[int, int, Pair]:
        sends, receives = self.to_send[pair[0]], self.to_receive[pair[1]]
        return -max(sends, receives), -min(sends, receives), pair

    def _begin(self, pair: Pair, now: int) -> int:
        """Let half of a pair's messages travel from round `now` on; how many."""
        sender, receiver = pair
        n = (self.left[pair] + 1) // 2
        runs = self.found[pair]
        if runs and sum(runs[-1]) == now:
            runs[-1] = (runs[-1][0], runs[-1][1] + n)
        else:
            runs.append((now, n))
        self.left[pair] -= n
        if not self.left[pair]:
            self.receivers[sender].remove(receiver)
            self.senders[receiver].remove(sender)
        self.to_send[sender] -= n
        self.to_receive[receiver] -= n
        self.sending.add(sender)
        self.receiving.add(receiver)
        return n

    def _free_after(self, ends: list[tuple[int, Pair]], now: int) -> set[Pair]:
        """Pairs that can begin now that one of their ranks has nothing to do from `now` on."""
        senders, receivers = [], []
        while ends and ends[0][0] == now:
            _, (sender, receiver) = heapq.heappop(ends)
            self.sending.remove(sender)
            self.receiving.remove(receiver)
            senders.append(sender)
            receivers.append(receiver)
        freed = {(s, r) for s in senders for r in self.receivers[s] if r not in self.receiving}
        freed |= {(s, r) for r in receivers for s in self.senders[r] if s not in self.sending}
        return freed
