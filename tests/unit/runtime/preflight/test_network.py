"""Nodes that measure each other, and those that make pairs slow."""

import itertools

import pytest

from verl_hpc.runtime.preflight.network import rounds_of, slow_nodes


@pytest.mark.parametrize("num_nodes", range(2, 12))
def test_rounds_have_each_pair_of_the_ring_once_and_no_node_twice(num_nodes):
    rounds = rounds_of(num_nodes)
    assert len(rounds) <= 3
    for pairs in rounds:
        nodes = list(itertools.chain(*pairs))
        assert len(nodes) == len(set(nodes))
    found = sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs)
    assert found == sorted({tuple(sorted((i, (i + 1) % num_nodes))) for i in range(num_nodes)})
    assert rounds_of(1) == [], "one node has nobody to measure"


def ring(num_nodes, *bad):
    """Speeds of a ring where each pair with a bad node has 1 GB/s, others 10."""
    pairs = [pair for pairs in rounds_of(num_nodes) for pair in pairs]
    return {pair: 1.0 if set(pair) & set(bad) else 10.0 for pair in pairs}


RINGS = [(3, [1]), (4, [0]), (4, [3]), (8, [2, 5]), (8, [2, 3]), (9, [8]), (9, [])]
ONE_SLOW_PAIR, TWO_NODES = ring(5) | {(1, 2): 1.0}, {(0, 1): 1.0}


def test_bad_nodes_are_found_and_none_is_to_blame_where_none_stands_out():
    for num_nodes, bad in RINGS:
        assert slow_nodes(ring(num_nodes, *bad), 5.0) == bad
    for speeds in (ONE_SLOW_PAIR, TWO_NODES, ring(5, *range(5))):
        assert slow_nodes(speeds, 5.0) == []
