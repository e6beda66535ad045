"""Labels to ranks: every form, and what means no ranks."""

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.placement.placements import place_ranks


@pytest.mark.parametrize(
    "text, ranks",
    [
        ("3", range(3, 4)),
        ("0-3", range(4)),
        ("2 - 5", range(2, 6)),
        ("5-5", range(5, 6)),
        ("node 1", range(4, 8)),
        ("nodes 0-1", range(8)),
        ("nodes 1", range(4, 8)),
        ("1/2", range(4)),
        ("3/8", range(3)),
        ("2/2", range(8)),
        ("4/32", range(1)),
        ("all", range(8)),
    ],
)
def test_every_form_of_a_label(text, ranks):
    assert place_ranks({"train": text}, 8, ranks_per_node=4) == {"train": ranks}


def test_shares_follow_each_other():
    found = place_ranks({"train": "1/2", "rollout": "3/8", "reward": "1/8"}, 8)
    assert found == {"train": range(4), "rollout": range(4, 7), "reward": range(7, 8)}


def test_other_forms_take_nothing_from_the_shares():
    found = place_ranks({"train": "1/2", "critic": "0-3", "rollout": "1/2"}, 4)
    assert found == {"train": range(2), "critic": range(4), "rollout": range(2, 4)}


def test_three_ways_to_write_the_same():
    halves = {"train": range(4), "rollout": range(4, 8)}
    for first, second in (("1/2", "1/2"), ("0-3", "4-7"), ("node 0", "node 1")):
        assert place_ranks({"train": first, "rollout": second}, 8, 4) == halves


def test_nothing_is_placed_where_nothing_is_asked():
    assert place_ranks({}, 8) == {}


def test_without_a_size_the_job_is_one_node():
    assert place_ranks({"train": "node 0"}, 8) == {"train": range(8)}


@pytest.mark.parametrize(
    "placement, words",
    [
        ({"train": "8"}, ["placement.train = 8", "ranks 0 to 7"]),
        ({"train": "4-8"}, ["placement.train = 4-8", "ranks 0 to 7", "start more"]),
        ({"train": "5-3"}, ["placement.train = 5-3", "the lower first"]),
        ({"train": "node 2"}, ["placement.train = node 2", "nodes 0 to 1"]),
        ({"train": "nodes 1-0"}, ["nodes 1-0", "the lower first"]),
        ({"train": "1/3"}, ["placement.train = 1/3", "8 are left", "2.66667", "a whole number"]),
        ({"train": "0/2"}, ["placement.train = 0/2", "0 are asked for"]),
        ({"train": "9/8"}, ["placement.train = 9/8", "8 are left", "9 are asked for"]),
        (
            {"train": "3/4", "rollout": "1/2"},
            ["placement.rollout = 1/2", "2 are left", "4 are asked for"],
        ),
    ],
)
def test_what_means_no_ranks_is_refused(placement, words):
    with pytest.raises(ConfigError) as caught:
        place_ranks(placement, 8, ranks_per_node=4)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_incomplete_node_is_none():
    with pytest.raises(ConfigError, match="nodes 0 to 0"):
        place_ranks({"train": "node 1"}, 6, ranks_per_node=4)
