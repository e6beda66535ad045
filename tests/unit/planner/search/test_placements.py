"""Partitions, allotments and layouts that a search goes through."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.models import PUBLISHED, architecture
from verl_hpc.config.model import ParallelConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.megatron import check_megatron_layout
from verl_hpc.planner.search.cuts import Cut, cuts_of, divisors, rollout_sizes
from verl_hpc.planner.search.placements import MOST_ALLOTMENTS, allotments, set_partitions, unit_of
from verl_hpc.planner.search.sizes import node_counts

L70 = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
BELL = [1, 1, 2, 5, 15, 52, 203]


@pytest.mark.parametrize("number", range(1, 7))
def test_partitions_are_as_many_as_bells_numbers(number):
    names = tuple("abcdef"[:number])
    found = set_partitions(names)
    assert len(set(found)) == len(found) == BELL[number]
    for sets in found:
        assert sorted(name for one in sets for name in one) == list(names)
        assert all(list(one) == sorted(one) for one in sets)
    assert found[0] == (names,)


@given(units=st.integers(1, 9), number=st.integers(1, 4), unit=st.integers(1, 3))
def test_allotments_are_all_compositions(units, number, unit):
    found = list(allotments(units * unit, unit, [unit] * number))
    assert len(set(found)) == len(found) == comb(units - 1, number - 1)
    assert all(sum(sizes) == units * unit and min(sizes) >= unit for sizes in found)
    # Allotments have their least.
    assert list(allotments(8, 2, [3, 2])) == [(4, 4), (6, 2)]
    assert list(allotments(8, 2, [8, 2])) == []


def test_units():
    assert [unit_of(nodes * 8, 8, [1, 2]) for nodes in (128, 4096)] == [8, 32 * 8]
    assert unit_of(8, 8, [1, 2, 3]) == 1
    assert unit_of(64, 8, [1, 2, 3]) == 8
    placements = [len(sets) for sets in set_partitions("abcd")]
    unit = unit_of(4096, 8, placements)
    assert unit % 8 == 0 and unit > 8
    counts = [len(list(allotments(4096, unit, [unit] * number))) for number in placements]
    assert sum(counts) <= MOST_ALLOTMENTS


def test_layouts_are_what_the_model_and_the_ranks_allow():
    found = cuts_of(L70, 64, 8, "none", trains=True)
    assert len(set(found)) == len(found)
    for cut in found:
        check_megatron_layout(L70, cut.layout)
        assert cut.layout.num_ranks == 64 and cut.layout.tp <= 8
    assert {cut.recompute for cut in found} == {"none", "full"}
    assert {cut.layout.pp for cut in found if cut.layout.tp == 8} == {1, 2, 4, 8}
    alone = cuts_of(L70, 64, 8, "selective", trains=False)
    assert {cut.recompute for cut in alone} == {"none"}


def test_context_parallelism_is_what_the_configuration_says():
    found = cuts_of(L70, 64, 8, "none", trains=True, context_parallel=4)
    assert found and {cut.layout.cp for cut in found} == {4}
    assert all(cut.layout.num_ranks == 64 and cut.layout.num_replicas >= 1 for cut in found)
    assert {cut.settings(ParallelConfig())["context_parallel"] for cut in found} == {4}


def test_tensor_parallelism_stays_in_a_node():
    assert rollout_sizes(L70, 64, 8, RolloutConfig()) == [1, 2, 4, 8]
    assert rollout_sizes(L70, 12, 8, RolloutConfig()) == [1, 2, 4]
    assert rollout_sizes(L70, 64, 4, RolloutConfig(pipeline_parallel=2)) == [1, 2, 4]
    odd = architecture(num_heads=6, num_kv_heads=2, head_size=2)
    assert {cut.layout.tp for cut in cuts_of(odd, 8, 8, "none", trains=False)} == {1, 2}


def test_settings_of_a_layout():
    (cut,) = [
        c
        for c in cuts_of(L70, 64, 8, "selective", trains=True)
        if (c.layout.tp, c.layout.pp, c.layout.vpp, c.recompute) == (8, 4, 2, "selective")
    ]
    base = ParallelConfig(recompute="selective", recompute_modules=["core_attn"])
    assert cut.parallel(base) == ParallelConfig(
        tensor_parallel=8,
        sequence_parallel=True,
        pipeline_parallel=4,
        virtual_pipeline=2,
        recompute="selective",
        recompute_modules=["core_attn"],
    )
    assert Cut(cut.layout, "none").parallel(base).recompute == "none"


def test_numbers():
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    for number in range(1, 150):
        assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)
    assert node_counts(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    assert node_counts(1) == [1]
