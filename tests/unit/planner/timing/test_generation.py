"""Generation: what decoding reads, how many sequences it holds, and the longest response."""

from dataclasses import replace

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.timing.generation import Engines, at_a_time, generate_cost
from verl_hpc.planner.timing.lengths import Lengths, any_alive, survival
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload

L8 = architecture_from(PUBLISHED["Llama-3.1-8B"][0])
L70 = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
H100 = Machine(Hardware(KINDS["H100-80"], 8))


def work(sequences, longest=1000, spread=0.0, mean=None, prompt=100, samples=1):
    lengths = Lengths(mean or longest, longest, spread)
    return Workload(sequences, samples, prompt, lengths, 1, 1, 8192)


def seconds(engines, load):
    return H100.seconds(generate_cost(H100, engines, load))


def test_one_sequence_reads_all_weights_at_each_token():
    cost = generate_cost(H100, Engines(L8, 1, 1), work(1))
    # But for the embedding, of which a token needs a row.
    read = 2 * (L8.num_parameters - L8.vocab_size * L8.hidden_size)
    cache = 2 * 2 * L8.num_layers * L8.num_kv_heads * L8.head_size
    prompt = 2 * L8.num_parameters
    expected = (prompt + 1000 * (read + cache * (100 + 500))) / 3350e9
    assert cost["memory"] == pytest.approx(expected)
    assert cost["decode_steps"] == pytest.approx(1000 + 1)
    assert "collective" not in cost


def test_a_token_of_llama_70b_takes_what_it_takes():
    """TP8 on H100s decodes 32 sequences at about 12.5 ms a token (vLLM), of which the host has 1.5;
    its factor is fitted to steps of reinforcement learning, where the host takes longer."""
    cost = generate_cost(H100, Engines(L70, 8, 8), work(32))
    found = H100.seconds({**cost, "decode_steps": 0.0}) / 1000
    assert found == pytest.approx(11e-3, rel=0.15)


def test_what_does_not_fit_waits():
    per_token = Engines(L8, 1, 1).cache_bytes_per_token
    assert per_token == 2 * 2 * 32 * 8 * 128
    room = Engines(L8, 1, 1, cache_bytes=per_token * 600 * 20, max_sequences=1024)
    assert at_a_time(room, work(100)) == pytest.approx(20)
    waves = generate_cost(H100, room, work(100))["decode_steps"]
    assert waves == pytest.approx(5 * 1000, rel=0.01)
    assert at_a_time(replace(room, cache_bytes=per_token * 550), work(1)) == pytest.approx(0.5)


def test_an_engine_decodes_no_more_than_it_is_told():
    assert at_a_time(Engines(L8, 1, 1, max_sequences=64), work(1)) == 64
    assert at_a_time(Engines(L8, 1, 1), work(1)) == 1024


def test_the_longest_response_keeps_an_engine():
    even = work(64, 4000, 0.0, 500)
    ragged = work(64, 4000, 1.0, 500)
    engines = Engines(L8, 8, 1)
    steps = generate_cost(H100, engines, ragged)["decode_steps"]
    stretches = survival(ragged.responses)
    longest = sum(width * any_alive(share, 64) for _, width, share in stretches)
    assert steps == pytest.approx(longest, rel=0.02)
    assert seconds(engines, ragged) > 2 * seconds(engines, even)
    # Sequences are decoded as often as they have tokens, however they are spread.
    one, other = (generate_cost(H100, engines, w)["decode_sequences"] for w in (even, ragged))
    assert one == pytest.approx(other, rel=0.02)


def test_more_engines_end_sooner_but_not_before_the_longest():
    load = work(4096, 4000, 0.7, 1000)
    found = [seconds(Engines(L8, n, 1), load) for n in (8, 32, 128, 4096)]
    assert found == sorted(found, reverse=True)
    alone = seconds(Engines(L8, 1, 1), work(1, 4000))
    assert found[-1] > 0.9 * alone


def test_samples_of_a_prompt_read_it_once():
    single, grouped = (
        generate_cost(H100, Engines(L8, 1, 1), work(64, 2, prompt=4000, samples=samples))
        for samples in (1, 8)
    )
    assert grouped["prefill"] == pytest.approx(single["prefill"] / 8, rel=0.02)


def test_heads_that_there_are_too_few_of_are_on_several_ranks():
    assert Engines(L8, 16, 16).cache_bytes_per_token == Engines(L8, 8, 8).cache_bytes_per_token
    assert Engines(L8, 8, 4, 2).weight_bytes == pytest.approx(Engines(L8, 8, 8).weight_bytes)


def test_few_sequences_touch_few_experts():
    moe = architecture_from(PUBLISHED["Qwen3-30B-A3B"][0])
    one, many = (generate_cost(H100, Engines(moe, 1, 1), work(n)) for n in (1, 256))
    assert one["memory"] < 0.2 * many["memory"]
