"""Several data sets in one stream: shares, order, positions, and what is refused."""

from array import array
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.config.trees import parse
from tests.unit.data.conftest import verl_row, write_jsonl
from verl_hpc.data.fingerprint import fingerprint
from verl_hpc.data.mixed import MixedSource, order_of, without_rows
from verl_hpc.data.order import Order, Position
from verl_hpc.data.sources import open_source
from verl_hpc.errors import ConfigError, DataError


def mix_of(directory, sizes, weights):
    sets = {}
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        rows = [verl_row(100 * number + i) for i in range(size)]
        path = str(write_jsonl(directory / f"{number}.jsonl", rows))
        sets[f"s{number}"] = {"source": {"kind": "files", "paths": [path]}, "weight": weight}
    return parse(data__train={"kind": "mix", "sets": sets}).data.train


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
    cuts=st.lists(st.integers(1, 40), min_size=3, max_size=6),
    data=st.data(),
)
def test_every_epoch_has_the_shares_and_every_set_its_own_order(sizes, seed, shuffle, cuts, data):
    parts = data.draw(st.lists(st.integers(2, 6), min_size=len(sizes), max_size=len(sizes)))
    weights = {f"s{i}": part / sum(parts) for i, part in enumerate(parts)}
    source = MixedSource({f"s{i}": range(n) for i, n in enumerate(sizes)}, weights)
    if min(weights.values()) * len(source) < 1:
        return
    order = order_of(source, seed, shuffle)
    rows, behind = order.take(Position(), 3 * len(source))
    assert behind == Position(3, 0)
    for epoch in range(3):
        drawn = Counter(map(source.set_of, rows[epoch * len(source) : (epoch + 1) * len(source)]))
        for name, weight in weights.items():
            assert abs(drawn[name] - weight * len(source)) <= 1
    first = 0
    for name, part in source.sets.items():
        own = [row - first for row in rows if source.set_of(row) == name]
        assert own == Order(len(part), seed, shuffle).take(Position(), len(own))[0]
        first += len(part)
    # Taken in pieces by orders that know nothing of each other, the stream is the same.
    position, pieces = Position(), []
    for count in cuts:
        piece, position = order_of(source, seed, shuffle).take(position, count)
        pieces += piece
    assert pieces == order.take(Position(), sum(cuts))[0]


def test_rows_are_those_of_the_sets_and_keep_their_set_where_some_are_dropped(tmp_path):
    config = mix_of(tmp_path, (3, 2), (0.5, 0.5))
    source = open_source(config)
    assert [p.extra["index"] for p in source] == [0, 1, 2, 100, 101]
    assert [p.index for p in source] == [0, 1, 2, 3, 4]
    assert [p.extra["index"] for p in source.scan()] == [0, 1, 2, 100, 101]
    left = without_rows(source, array("q", [1, 3]))
    assert [(p.index, p.extra["index"]) for p in left] == [(0, 0), (1, 2), (2, 101)]
    assert left.set_of(2) == "s1"
    with pytest.raises(DataError, match="no row of the set s1"):
        without_rows(source, array("q", [3, 4]))


def test_weights_and_rows_decide_what_a_resumed_run_must_have(tmp_path):
    known = fingerprint(mix_of(tmp_path, (3, 2), (0.5, 0.5)))
    assert known == fingerprint(mix_of(tmp_path, (3, 2), (0.5, 0.5)))
    assert known != fingerprint(mix_of(tmp_path, (3, 2), (0.4, 0.6)))
    assert known != fingerprint(mix_of(tmp_path, (3, 1), (0.5, 0.5)))


def test_what_cannot_be_mixed(tmp_path):
    for weights, words in (
        ((0.5, 0.6), "weights of s0, s1 sum to 1.1; expected a sum of 1"),
        ((0.5, None), "sets.s1: has no weight, and s0 has one"),
        ((0.0, 1.0), "sets.s0.weight"),
    ):
        with pytest.raises(ConfigError, match=words):
            mix_of(tmp_path, (3, 2), weights)
    with pytest.raises(DataError, match="1.jsonl: no rows"):
        open_source(mix_of(tmp_path, (3, 0), (0.5, 0.5)))
    with pytest.raises(DataError, match="s0 has a weight of 0.01, which is no row of the 5"):
        order_of(open_source(mix_of(tmp_path, (3, 2), (0.01, 0.99))), 0, True)
    assert mix_of(tmp_path, (3, 2), (None, None)).weights == {"s0": 0.5, "s1": 0.5}
