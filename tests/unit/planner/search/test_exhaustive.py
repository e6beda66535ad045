"""The search finds what an exhaustive one finds, which uses the ledger and the time model alone."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.slow import all_slow
from tests.unit.config.trees import GAE, tree
from tests.unit.layout.models import architecture
from tests.unit.planner.search.exhaustive import fastest
from verl_hpc.config.load import parse_config
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.planner.search.search import search
from verl_hpc.planner.timing.machine import Machine

GIB = 2**30
TINY = architecture(
    num_layers=2,
    hidden_size=2048,
    ffn_size=8192,
    num_heads=2,
    num_kv_heads=2,
    head_size=128,
    vocab_size=16000,
    max_positions=4096,
)
DEEP = replace(TINY, num_layers=8, hidden_size=1024, ffn_size=4096, num_heads=4, num_kv_heads=4)
"""With stages of several layers, which may be cut into virtual ones."""
GRPO = {"algorithm__kl": {"placement": "loss"}}
PPO = {**GAE, "algorithm__kl": {"placement": "reward"}}
REWARD = {"roles": {"reward": {"path": "models/reward"}}}
OFFLOAD = {"parameters": True, "gradients": True, "optimizer": True}
LENGTHS = {"rollout__max_prompt_tokens": 256, "rollout__max_response_tokens": 1024}


def gpus(per_node, memory_gib, host_gib_per_rank=None):
    host = None if host_gib_per_rank is None else int(host_gib_per_rank * per_node * GIB)
    kind = replace(KINDS["A100-80"], memory_gib=memory_gib)
    return Machine(Hardware(kind, per_node, host_bytes=host))


def cores(per_node, gib_per_rank):
    return Machine(Hardware(KINDS["cpu"], per_node, host_bytes=int(gib_per_rank * per_node * GIB)))


def agrees(machine, num_ranks, spare_bytes=0, archs=None, **changes):
    """Compare both; returns the seconds, None where nothing fits.

    Args:
        archs: of roles whose model is not TINY.
    """
    of_run = tree(**LENGTHS, **{"batch__size": 32, "rollout__kv_cache_gib": 0.25, **changes})
    placed = {"placement": {"rollout": "1/2"}} if changes.get("rollout__staleness") else {}
    config = parse_config(of_run | placed)
    archs = dict.fromkeys(config.role_settings, TINY) | (archs or {})
    expected = fastest(of_run | placed, archs, machine, num_ranks, spare_bytes)
    try:
        seconds = search(config, archs, machine, num_ranks, spare_bytes=spare_bytes).best.seconds
    except ConfigError:
        seconds = None
    assert seconds == (None if expected is None else pytest.approx(expected, rel=1e-9))
    return seconds


@settings(max_examples=8, deadline=None)
@given(
    num_ranks=st.integers(1, 4),
    memory_gib=st.floats(3.5, 9.0),
    host_gib=st.sampled_from([None, 5.0, 7.0]),
    spare_bytes=st.sampled_from([0, GIB // 2]),
    offload=st.sampled_from([{}, {"optimizer": True}, OFFLOAD]),
    tokens=st.sampled_from([2048, 8192]),
    recompute=st.sampled_from(["none", "selective"]),
)
def test_grpo_on_up_to_four_gpus(
    num_ranks, memory_gib, host_gib, spare_bytes, offload, tokens, recompute
):
    changes = {"offload": offload, "batch__max_tokens_per_micro_batch": tokens}
    changes |= {"parallel__recompute": recompute, "checkpoint__background": True, **GRPO}
    agrees(gpus(4, memory_gib, host_gib), num_ranks, spare_bytes, **changes)


@settings(max_examples=4, deadline=None)
@example(num_ranks=2, gib=7.0, offload={})
@example(num_ranks=3, gib=7.0, offload=OFFLOAD)
@given(num_ranks=st.integers(1, 4), gib=st.floats(1.5, 8.0), offload=st.sampled_from([{}, OFFLOAD]))
def test_grpo_on_up_to_four_cores(num_ranks, gib, offload):
    agrees(cores(4, gib), num_ranks, offload=offload, model__dtype="float32", **GRPO)


@pytest.mark.parametrize("memory_gib", [5.6, *all_slow(6.1, 80.0)])
@pytest.mark.parametrize(("num_ranks", "roles"), [(2, {}), *all_slow((3, {}), (2, REWARD))])
def test_ppo_on_one_node(num_ranks, roles, memory_gib):
    agrees(gpus(4, memory_gib), num_ranks, **PPO, **roles, offload=OFFLOAD)


@pytest.mark.parametrize("memory_gib", [5.3, 7.0])
@pytest.mark.parametrize(("num_ranks", "per_node"), [(8, 4), *all_slow((8, 8), (12, 12), (16, 8))])
def test_grpo_on_eight_to_sixteen_gpus(num_ranks, per_node, memory_gib):
    agrees(gpus(per_node, memory_gib), num_ranks, **GRPO, offload=OFFLOAD)


@pytest.mark.parametrize("memory_gib", [5.0, 6.5, 20.0])
@pytest.mark.parametrize("num_ranks", [4, *all_slow(8)])
def test_stages_that_are_cut(num_ranks, memory_gib):
    agrees(gpus(8, memory_gib), num_ranks, archs={"actor": DEEP, "reference": DEEP}, **GRPO)


@pytest.mark.parametrize(("num_ranks", "memory_gib"), [(2, 6.0), (2, 9.0), *all_slow((4, 9.0))])
def test_roles_of_different_models(num_ranks, memory_gib):
    archs = {"actor": DEEP, "reference": DEEP}
    agrees(gpus(4, memory_gib), num_ranks, archs=archs, **PPO, offload=OFFLOAD)


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "per_node"), [(8, 4), (16, 8)])
def test_ppo_on_two_nodes(num_ranks, per_node):
    assert agrees(gpus(per_node, 8.0), num_ranks, **PPO, offload=OFFLOAD) is not None


def test_rollout_ranks_of_their_own():
    found = agrees(gpus(4, 8.0), 4, rollout__staleness=1, **GRPO)
    assert found is not None


def test_a_reference_of_another_model_has_an_engine_of_its_own():
    roles = {"roles": {"reference": {"path": "models/other"}}}
    assert agrees(gpus(4, 9.0), 4, **GRPO, **roles) is not None


def test_an_evaluation_of_what_is_imitated_keeps_its_engines():
    changes = {"recipe": "sft", "rollout__num_samples": 1}
    assert agrees(gpus(4, 6.5), 4, **changes) is not None
