"""The rounds of messages: any ranks, any messages between them, and nobody waits for ever."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.layout.rounds import rounds_of


@st.composite
def exchanges(draw, most=5):
    """How many messages each rank sends to each other one."""
    size = draw(st.integers(1, 7))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    return size, {pair: draw(st.integers(0, most)) for pair in pairs}


def rounds(counts):
    """(sender, receiver, index of the message) of every round."""
    found = {}
    for pair, runs in rounds_of(counts).items():
        places = [first + i for first, n in runs for i in range(n)]
        assert places == sorted(set(places)), "messages of a pair keep their order"
        for index, place in enumerate(places):
            found.setdefault(place, []).append((*pair, index))
    return found


def bound(counts):
    """Messages of the busiest end: no fewer rounds are possible."""
    ends = Counter()
    for (a, b), n in counts.items():
        ends["send", a] += n
        ends["receive", b] += n
    return max(ends.values(), default=0)


@given(exchanges(most=20))
def test_each_round_is_a_matching_and_there_are_at_most_twice_as_many_as_must_be(exchange):
    _, counts = exchange
    found = rounds(counts)
    assert sorted(found) == list(range(len(found))), "no round is empty"
    for matching in found.values():
        for end in (0, 1):
            ranks = [message[end] for message in matching]
            assert len(set(ranks)) == len(ranks)
    expected = [(a, b, i) for (a, b), n in counts.items() for i in range(n)]
    assert sorted(m for matching in found.values() for m in matching) == sorted(expected)
    assert len(found) <= max(2 * bound(counts) - 1, 0)


@given(exchanges())
def test_no_rank_waits_for_ever(exchange):
    """A message passes while it is in the current step of both its ranks; a rank begins its
    next step when all messages of the current one have passed. (Two steps may be under way in a
    transfer: then even more passes.)"""
    size, counts = exchange
    scripts = [[] for _ in range(size)]
    for _, matching in sorted(rounds(counts).items()):
        for rank, script in enumerate(scripts):
            mine = [message for message in matching if rank in message[:2]]
            if mine:
                script.append(mine)
    done, passed = [0] * size, []
    while True:
        current = [s[n] if n < len(s) else [] for s, n in zip(scripts, done, strict=True)]
        for message in {m for step in current for m in step}:
            sender, receiver, _ = message
            if message in current[sender] and message in current[receiver]:
                passed.append(message)
        free = [rank for rank, step in enumerate(current) if step and set(step) <= set(passed)]
        if not free:
            break
        for rank in free:
            done[rank] += 1
    assert done == [len(s) for s in scripts], "every rank came to its end"


def test_a_ring_and_everyone_to_everyone_need_no_more_rounds_than_must_be():
    assert len(rounds({(r, (r + 1) % 8): 5 for r in range(8)})) == 5
    everyone = {(a, b): 1 for a in range(8) for b in range(8) if a != b}
    assert len(rounds(everyone)) <= 8
