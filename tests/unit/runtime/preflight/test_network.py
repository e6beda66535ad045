"""Which nodes measure each other, and which are to blame for slow pairs."""

import itertools

import pytest

from verl_hpc.runtime.preflight.network import judge_pairs, rounds_of, slow_nodes


@pytest.mark.parametrize("num_nodes", range(2, 12))
def test_rounds_have_each_pair_of_the_ring_once_and_no_node_twice(num_nodes):
    rounds = rounds_of(num_nodes)
    assert len(rounds) <= 3
    for pairs in rounds:
        nodes = list(itertools.chain(*pairs))
        assert len(nodes) == len(set(nodes))
    found = sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs)
    ring = {tuple(sorted((i, (i + 1) % num_nodes))) for i in range(num_nodes)}
    assert found == sorted(ring)


def test_one_node_has_nobody_to_measure():
    assert [pair for pairs in rounds_of(1) for pair in pairs if pair[0] != pair[1]] == []


def ring(num_nodes, *bad):
    """Speeds of a ring where each pair with a bad node has 1 GB/s, others 10."""
    pairs = [pair for pairs in rounds_of(num_nodes) for pair in pairs]
    return {pair: 1.0 if set(pair) & set(bad) else 10.0 for pair in pairs}


@pytest.mark.parametrize(
    "num_nodes, bad", [(3, [1]), (4, [0]), (4, [3]), (8, [2, 5]), (8, [2, 3]), (9, [8]), (9, [])]
)
def test_bad_nodes_are_found(num_nodes, bad):
    assert slow_nodes(ring(num_nodes, *bad), 5.0) == bad


def test_of_two_nodes_neither_is_to_blame():
    assert slow_nodes({(0, 1): 1.0}, 5.0) == []


def test_where_all_are_slow_none_is_to_blame():
    assert slow_nodes(dict.fromkeys(ring(5), 1.0), 5.0) == []


def test_one_slow_pair_blames_nobody():
    assert slow_nodes(ring(5) | {(1, 2): 1.0}, 5.0) == []


HOSTS = ["n0", "n1", "n2", "n3"]


def test_without_a_floor_speeds_are_reported():
    verdict = judge_pairs(ring(4, 1), HOSTS, None)
    assert verdict.state == "ok"
    assert "1.00 to 10.00 GB/s in 4 pairs" in verdict.found
    assert "reported only" in verdict.found


def test_above_the_floor():
    assert judge_pairs(ring(4), HOSTS, 10.0).state == "ok"


def test_below_the_floor():
    verdict = judge_pairs(ring(4, 1), HOSTS, 5.0)
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert "slow: n0-n1 1.00, n1-n2 1.00" in verdict.found
    assert verdict.todo == "leave out n1"


@pytest.mark.parametrize(
    "speeds, words",
    [
        (ring(4, 0, 1, 2, 3), "all are slow"),
        (ring(4) | {(1, 2): 1.0}, "one node of each slow pair"),
        ({(0, 1): 1.0}, "all are slow"),
    ],
)
def test_below_the_floor_with_nobody_to_blame(speeds, words):
    verdict = judge_pairs(speeds, HOSTS, 5.0)
    assert (verdict.state, verdict.nodes) == ("fails", ())
    assert words in verdict.todo
