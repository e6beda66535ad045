"""What HybridFlow (arXiv 2409.19256) chose on its 128 A100s, by the default model.

PPO with four models of one size, prompts and responses of 1,024 tokens, 1,024 of them a step, 8
optimizer steps. 200 Gb/s between machines of 8 GPUs is 3.1 GB/s a GPU.

Where the model disagrees, and its seconds of a step, is in
benchmarks/results/2026-11-planner-and-publications.md, whose figures are held here.
"""

import re
from functools import lru_cache

import pytest

from tests.slow import all_slow
from tests.unit.cluster.requests import ROOT
from tests.unit.config.trees import parse
from verl_hpc.hardware.node import KINDS, Hardware, LinkFigures
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.search.search import search
from verl_hpc.planner.timing.generation import at_a_time, generate_cost
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.operator_costs import engines
from verl_hpc.planner.timing.workload import workload_of

TESTBED = Machine(Hardware(KINDS["A100-80"], 8, LinkFigures(network_gb_s=3.125)))


def llama(num_layers, hidden_size, ffn_size, num_heads, num_kv_heads):
    head_size = hidden_size // num_heads
    sizes = (num_layers, hidden_size, ffn_size, num_heads, num_kv_heads, head_size, 32000)
    return Architecture("llama", *sizes, False, max_positions=4096)


MODELS = {
    "7B": llama(32, 4096, 11008, 32, 32),
    "13B": llama(40, 5120, 13824, 40, 40),
    "34B": llama(48, 8192, 22016, 64, 8),
    "70B": llama(80, 8192, 28672, 64, 8),
}
COLOCATED = (("actor", "critic", "reference", "reward"),)
SPLIT = (("actor", "reference"), ("critic", "reward"))


def ppo():
    return parse(
        algorithm__advantage={"name": "gae"},
        algorithm__kl={"placement": "reward"},
        batch={"size": 1024, "mini_batches": 8},
        roles={"reference": {"path": "models/sft"}, "reward": {"path": "models/reward"}},
        offload={"parameters": True, "gradients": True, "optimizer": True},
        rollout={"num_samples": 1, "max_prompt_tokens": 1024, "max_response_tokens": 1024},
    )


CONFIG = ppo()
WORK = workload_of(CONFIG, 1024, Lengths(1024, 1024, 0.0))


@lru_cache
def found(num_gpus, **models):
    archs = {role: MODELS[models.get(role, models["actor"])] for role in CONFIG.role_settings}
    return search(CONFIG, archs, TESTBED, num_gpus, work=WORK)


def best(model, num_gpus):
    return found(num_gpus, actor=model).best


def seconds_of(result, sets):
    return next(c.seconds for c in result.ranking if set(c.sets) == set(sets))


def generation_seconds(arch, num_gpus):
    """Seconds by the tensor-parallel size of engines that hold a sequence."""
    known = {tp: engines(CONFIG, arch, TESTBED, num_gpus, tp) for tp in (1, 2, 4, 8)}
    return {
        tp: TESTBED.seconds(generate_cost(TESTBED, one, WORK))
        for tp, one in known.items()
        if at_a_time(one, WORK) >= 1
    }


@pytest.mark.parametrize(
    ("model", "num_gpus", "tp"), [("7B", 16, 2), ("13B", 16, 4), ("34B", 32, 4), ("70B", 64, 8)]
)
def test_tensor_parallelism_of_the_generation(model, num_gpus, tp):
    seconds = generation_seconds(MODELS[model], num_gpus)
    assert min(seconds, key=seconds.__getitem__) == tp


def test_of_a_34b_with_all_key_value_heads():
    seconds = generation_seconds(llama(60, 6656, 17920, 52, 52), 32)
    assert min(seconds, key=seconds.__getitem__) == 8


@pytest.mark.parametrize(
    ("model", "num_gpus"),
    [("13B", 16), ("34B", 32), *all_slow(("7B", 16), ("7B", 64), ("13B", 32), ("13B", 64))],
)
def test_up_to_64_gpus_nothing_is_faster_than_colocated_by_much(model, num_gpus):
    result = found(num_gpus, actor=model)
    assert seconds_of(result, COLOCATED) < 1.02 * result.best.seconds


@pytest.mark.slow
@pytest.mark.parametrize(("model", "num_gpus"), [("13B", 96), ("34B", 128)])
def test_beyond_96_gpus_actor_and_critic_part(model, num_gpus):
    actors = next(roles for roles in best(model, num_gpus).sets if "actor" in roles)
    assert len(best(model, num_gpus).sets) == 2 and "critic" not in actors


@pytest.mark.slow
def test_standing_alone_loses_by_much_on_16_to_64_gpus():
    result = found(64, actor="7B")
    alone = seconds_of(result, [(role,) for role in CONFIG.role_settings])
    assert alone > 1.3 * result.best.seconds


@pytest.mark.slow
def test_a_larger_critic():
    for num_gpus in (32, 64):
        result = found(num_gpus, actor="13B", reference="13B", critic="70B", reward="70B")
        assert result.best.sets == COLOCATED


RESULTS = ROOT / "benchmarks/results/2026-11-planner-and-publications.md"
PAGE = " ".join(RESULTS.read_text("utf-8").split())
CRITIC_APART = (("actor", "reference", "reward"), ("critic",))
WITH_ACTOR = (("actor", "reward"), ("critic", "reference"))


def larger_critic():
    return found(128, actor="13B", reference="13B", critic="70B", reward="70B")


def fastest_of_four(result):
    return min(one.seconds for one in result.ranking if len(one.sets) == 4)


FIGURE = (
    r"34B generates fastest with TP4 here \(([\d.]+) against ([\d.]+)\), with TP8",
    lambda: [generation_seconds(MODELS["34B"], 32)[tp] for tp in (4, 8)],
)
SEARCHED = [
    (
        r"faster split here \(([\d.]+), best ([\d.]+); colocated ([\d.]+)\)",
        lambda: [
            seconds_of(found(64, actor="34B"), SPLIT),
            best("34B", 64).seconds,
            seconds_of(found(64, actor="34B"), COLOCATED),
        ],
    ),
    (
        r"on 96 it is 1 % faster colocated \(([\d.]+) against ([\d.]+)\)",
        lambda: [seconds_of(found(96, actor="34B"), sets) for sets in (COLOCATED, SPLIT)],
    ),
    (
        r"goes with the actor \(([\d.]+); with the critic ([\d.]+)\)",
        lambda: [seconds_of(found(128, actor="34B"), sets) for sets in (WITH_ACTOR, SPLIT)],
    ),
    (
        r"is best split \(([\d.]+), colocated ([\d.]+)\).* four sets take ([\d.]+) at best",
        lambda: [
            best("13B", 128).seconds,
            seconds_of(found(128, actor="13B"), COLOCATED),
            fastest_of_four(found(128, actor="13B")),
        ],
    ),
    (
        r"of 70B on 128 GPUs is best colocated \(([\d.]+)\);.* the other take ([\d.]+)\.",
        lambda: [larger_critic().best.seconds, seconds_of(larger_critic(), CRITIC_APART)],
    ),
]


@pytest.mark.parametrize(("pattern", "seconds"), [FIGURE, *all_slow(*SEARCHED)])
def test_a_figure_of_the_page_is_what_the_model_predicts(pattern, seconds):
    (printed,) = re.findall(pattern, PAGE)
    digits = [len(text.partition(".")[2]) for text in printed]
    assert [f"{s:.{n}f}" for s, n in zip(seconds(), digits, strict=True)] == list(printed)


@pytest.mark.slow
def test_what_the_page_calls_best_on_128_is():
    assert best("13B", 128).sets == SPLIT
    assert larger_critic().best.sets == COLOCATED
    assert best("34B", 128).sets == WITH_ACTOR
