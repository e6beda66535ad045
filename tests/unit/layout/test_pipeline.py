"""Dealing decoder layers to pipeline stages."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.errors import LayoutError
from verl_hpc.layout.pipeline import layers_per_stage, stage_layers


def test_llama_405b_on_16_stages():
    """The first and the last have one layer fewer (arXiv 2407.21783, section 3.3.2)."""
    assert layers_per_stage(126, 16) == ((7, *[8] * 14, 7),)


def test_the_docstrings_examples():
    assert layers_per_stage(8, 4, 2) == ((1, 1, 1, 1), (1, 1, 1, 1))
    assert layers_per_stage(6, 4, 2) == ((0, 1, 1, 1), (1, 1, 1, 0))


def test_a_prime_number_of_layers():
    """DeepSeek-V3 and Kimi K2 have 61."""
    assert layers_per_stage(61, 8) == ((7, 7, 8, 8, 8, 8, 8, 7),)
    assert layers_per_stage(61, 12) == ((5,) * 10 + (6, 5),)


def test_one_missing_layer_is_taken_from_the_output_layers_stage():
    assert layers_per_stage(7, 4) == ((2, 2, 2, 1),)


splits = st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(1, 3))


@given(splits)
def test_a_split_is_even_but_for_the_ends(sizes):
    num_layers, num_stages, num_chunks = sizes
    try:
        counts = layers_per_stage(*sizes)
    except LayoutError:
        assert num_stages * num_chunks - num_layers > 2, "refused though two ends suffice"
        return
    order = [n for row in counts for n in row]
    assert [len(row) for row in counts] == [num_stages] * num_chunks
    assert sum(order) == num_layers
    assert min(order) >= 0
    assert 0 not in order[1:-1]
    assert all(max(order) - 1 <= n for n in order)
    # Those that are short of a layer: the last, and then the first ones.
    assert order[:-1] == sorted(order[:-1]) and order[-1] == min(order)


@given(splits)
def test_stages_hold_consecutive_layers_in_the_order_they_run(sizes):
    num_layers, num_stages, num_chunks = sizes
    try:
        counts = layers_per_stage(*sizes)
    except LayoutError:
        return
    run = [
        layer
        for chunk in range(num_chunks)
        for stage in range(num_stages)
        for layer in stage_layers(counts, stage, chunk)
    ]
    assert run == list(range(num_layers))


@pytest.mark.parametrize("num_layers, num_stages, num_chunks", [(4, 7, 1), (4, 2, 4), (1, 4, 1)])
def test_a_refusal_names_the_sizes_and_every_stage_count_that_works(
    num_layers, num_stages, num_chunks
):
    with pytest.raises(LayoutError) as caught:
        layers_per_stage(num_layers, num_stages, num_chunks)
    message = str(caught.value)
    assert f"{num_layers} layers" in message
    assert f"pipeline_parallel = {num_stages} x virtual_pipeline = {num_chunks}" in message
    offered = [int(n) for n in re.findall(r"\d+", message.rsplit("[", 1)[1])]
    for count in range(1, num_layers + 3):
        if count in offered:
            layers_per_stage(num_layers, count, num_chunks)
        else:
            with pytest.raises(LayoutError):
                layers_per_stage(num_layers, count, num_chunks)
