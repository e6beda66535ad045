"""The rounds of messages: any ranks, any messages between them.

Ranks go through matchings in one order, so none waits for ever.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.layout.rounds import rounds_of


@st.composite
def exchanges(draw):
    """How many messages each rank sends to each other one."""
    size = draw(st.integers(1, 7))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    return {pair: draw(st.integers(0, 20)) for pair in pairs}


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


@given(exchanges())
def test_each_round_is_a_matching_and_there_are_at_most_twice_as_many_as_must_be(counts):
    found = rounds(counts)
    assert sorted(found) == list(range(len(found))), "no round is empty"
    for matching in found.values():
        for end in (0, 1):
            ranks = [message[end] for message in matching]
            assert len(set(ranks)) == len(ranks)
    expected = [(a, b, i) for (a, b), n in counts.items() for i in range(n)]
    assert sorted(m for matching in found.values() for m in matching) == sorted(expected)
    assert len(found) <= max(2 * bound(counts) - 1, 0)


def test_a_ring_and_everyone_to_everyone_need_no_more_rounds_than_must_be():
    assert len(rounds({(r, (r + 1) % 8): 5 for r in range(8)})) == 5
    everyone = {(a, b): 1 for a in range(8) for b in range(8) if a != b}
    assert len(rounds(everyone)) <= 8


def test_parts_that_are_alike_are_as_they_would_be_alone():
    part = {(0, 1): 3, (0, 2): 1, (1, 2): 5, (2, 0): 2}
    many = {(s + 3 * k, r + 3 * k): n for k in range(3) for (s, r), n in part.items()}
    found, alone = rounds_of(many), rounds_of(part)
    assert found == {(s + 3 * k, r + 3 * k): alone[s, r] for k in range(3) for s, r in part}


def test_a_part_of_many_pairs_is_compared_a_few_times():
    """A part as a key is as long as its pairs are many: it must not be hashed once a pair."""
    hashed = Counter()

    class Messages(int):
        def __hash__(self):
            hashed["messages"] += 1
            return super().__hash__()

    pairs = {(a, b): Messages(1) for a in range(40) for b in range(40)}
    assert len(rounds_of(pairs)) == 1600
    assert hashed["messages"] <= 4 * len(pairs)
