"""Adapters that travel alone: what is received is counted element by element, and the rollout's
weights are those of the model with adapters merged, in every layout and element type."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from tests.mpi.conftest import VLLM_HEADS, Reference
from tests.mpi.engines_for_tests import (
    build_engine,
    gathered,
    held,
    layouts,
    layouts_of_world,
    memory,
    rollout_of,
    same,
)
from tests.mpi.lora_for_tests import fill, merged, some_adapters
from tests.mpi.mixtures import VLLM_SIZES, engine_on, mixture
from tests.mpi.recipe_runs import ROLLOUT as RECIPE_ROLLOUT
from tests.mpi.recipe_runs import configure, finish, write_reward
from tests.mpi.storages import storage_bytes
from tests.mpi.test_fp8 import FP8, HEADS, SMALL, as_vllm_quantises, check_arrived
from tests.mpi.test_lora_parity import fill_reference
from tests.mpi.test_reshard import ROLLOUT, computed_alike, replicas_for
from tests.slow import all_slow
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.adapters import AdapterShape, a_of, adapter_tensors, b_of
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.quantization import quantised_tensors
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.planner.memory.kept_base import base_bytes, factor_bytes
from verl_hpc.planner.memory.rollout import RolloutShape
from verl_hpc.trainer.sync import WeightSync

LORA = LoraConfig(rank=3, alpha=6.0)
SOME = LoraConfig(rank=3, alpha=6.0, target_modules=["q_proj", "v_proj", "down_proj"])
ITEM = {"float32": 4, "bfloat16": 2}
DENSE = {
    1: layouts("rollout1"),
    2: layouts("tp2-rollout1 tp2-rollout2 pp2-rollout1 pp2-rollout2 dp2-rollout2-stages2"),
    4: layouts("tp2-dp2-rollout4"),
}
EXPERTS = {
    2: layouts("tp2-ep2-rollout1 dp2-ep2-rollout2-whole tp2-etp2-rollout2"),
    4: layouts("dp4-ep2-etp2-rollout4-stages2-whole"),
}
FURTHER = {
    "weights": {4: layouts("tp2-pp2-rollout1 tp4-rollout2 pp4-rollout4-stages2")},
    "experts": {4: layouts("tp2-dp2-ep4-rollout2 pp2-dp2-ep2-rollout4")},
}
"""On two ranks there are stages, and whole experts and parts of them, as well."""


def pytest_generate_tests(metafunc):
    kind = "experts" if "experts" in metafunc.function.__name__ else "weights"
    cases, lora = {"weights": DENSE, "experts": EXPERTS}[kind], {"all": LORA, "some": SOME}
    layouts_of_world(metafunc, cases, FURTHER[kind], chosen=list(lora))


def config_of(sizes) -> tuple[RolloutConfig, int, int]:
    """An engine's settings, its tensor-parallel size and its stages, which leave `sizes`."""
    size, stages = sizes.pop("rollout"), sizes.pop("stages", 1)
    parallel = {"tensor_parallel": size // stages, "pipeline_parallel": stages}
    parallel["expert_parallel"] = sizes.pop("whole", False)
    return ROLLOUT.model_copy(update=parallel), size // stages, stages


def sync_of(here, trainer, rollout, lora, dtype="float32", offloads=()) -> WeightSync:
    actor = SimpleNamespace(
        settings=SimpleNamespace(
            lora=lora,
            parallel=SimpleNamespace(engine="fsdp" if hasattr(trainer, "merged") else "megatron"),
        ),
        shard_map=trainer.shard_map,
        trained_map=trainer.trained_map,
        training=trainer,
        arch=trainer.arch,
    )
    held_by = SimpleNamespace(engine=rollout, shard_map=rollout.shard_map)
    return WeightSync(here, actor, held_by, offloads, getattr(torch, dtype), checksums=True)


def lacking(here, trainer, target) -> int:
    """Bytes of the elements of A and B that this rank's engine needs and its trainer has not, each
    once: marked one by one."""
    specs = trainer.trained_map.tensors
    needed = {name: torch.zeros(spec.shape, dtype=torch.bool) for name, spec in specs.items()}
    for region in target.held_by(here.world.rank):
        a, b = f"{a_of(region.tensor)}.weight", f"{b_of(region.tensor)}.weight"
        if a in needed:
            needed[a][:, region.box.slices[1]] = True
            needed[b][region.box.slices[0]] = True
    for region in trainer.trained_map.held_by(here.world.rank):
        needed[region.tensor][region.box.slices] = False
    return sum(int(n.sum()) * ITEM[specs[name].dtype] for name, n in needed.items())


def refits(here, trainer, rollout, lora, dtype="float32"):
    """Two refits with other adapters each; yields those that the engine has now. The second one
    moves the adapters alone, and the base stays as it is."""
    sync = sync_of(here, trainer, rollout, lora, dtype)
    addresses = {name: w.data_ptr() for name, w in rollout.weights.items()}
    base = {n: w.clone() for n, w in trainer.weights.items() if ".lora_" not in n}
    alone = sum(here.control.allgather(lacking(here, trainer, rollout.shard_map)))
    for seed in (0, 1):
        adapters = some_adapters(trainer, seed)
        adapters = {n: (t * 64).round().div(64).to(trainer.dtype) for n, t in adapters.items()}
        fill(trainer, adapters)
        told = sync.to_generation()
        received = told["reshard/received_bytes"]
        assert received == told["reshard/minimum_bytes"]
        assert received == alone if seed else received >= alone
        assert {name: w.data_ptr() for name, w in rollout.weights.items()} == addresses
        same({name: trainer.weights[name] for name in base}, base)
        yield adapters
    counted(here, sync, rollout, lora, trainer, dtype)


def counted(here, sync, rollout, lora, trainer, dtype) -> None:
    """The ledger's terms are the bytes in memory."""
    arrival = sync._arrival
    shape = RolloutShape.of(trainer.arch, rollout.config, dtype, on_gpu=False)
    adapters, trained = AdapterShape.of(lora), str(trainer.dtype).removeprefix("torch.")
    assert storage_bytes(arrival.factors.values()) == factor_bytes(shape, adapters, trained)
    kept = sum(len(piece) for pieces in arrival._kept.values() for piece in pieces)
    assert kept == base_bytes(shape, 0, adapters, trained, loses=False)


# ------------------------------------------------------------------------------ engines


def computes_alike(here, trainer, directory, family, config, replicas, lora):
    with closing(rollout_of(here, directory, replicas, config)) as rollout:
        rollout.config = config
        base = gathered(here, trainer.shard_map, trainer.weights)
        for adapters in refits(here, trainer, rollout, lora):
            for region in rollout.shard_map.held_by(here.world.rank):
                name = region.tensor
                wanted = merged(base[name], name, adapters, lora.scale)[region.box.slices]
                torch.testing.assert_close(
                    held(rollout.weights, region), wanted, rtol=1e-6, atol=1e-7
                )
            expected = Reference(directory)
            fill_reference(expected, family, adapters, lora.scale)
            computed_alike(here, trainer, rollout, replicas, expected)


@pytest.mark.world(*DENSE)
def test_vllm_computes_with_merged_weights(here, tiny_model, sizes, chosen):
    sizes, lora = dict(sizes), {"all": LORA, "some": SOME}[chosen]
    config, tp, stages = config_of(sizes)
    heads = VLLM_HEADS | {"num_hidden_layers": 4, "num_key_value_heads": 4}
    directory = tiny_model("qwen3", chosen == "some", **heads)
    trainer = build_engine(here, directory, TrainLayout(**sizes), lora=lora)
    replicas = replicas_for(trainer.layout, tp, stages)
    computes_alike(here, trainer, directory, "qwen3", config, replicas, lora)


@pytest.mark.world(*EXPERTS)
def test_vllm_computes_with_merged_experts(here, tiny_model, sizes):
    sizes = dict(sizes)
    config, tp, stages = config_of(sizes)
    directory, family = mixture(tiny_model, "normalised", **VLLM_SIZES)
    trainer = engine_on(here, directory, sizes, lora=LORA)
    replicas = replicas_for(trainer.layout, tp, stages)
    computes_alike(here, trainer, directory, family, config, replicas, LORA)


# ------------------------------------------------------------------------------ element types


def an_engine(here, arch, replicas, config, dtype):
    """The memory of an engine, which neither sleeps nor generates."""
    shard_map = rollout_shard_map(config, arch, replicas, dtype)
    found = memory(shard_map, here.world.rank)
    nothing = dict.fromkeys(("begin_update", "finish_update", "sleep"), lambda: None)
    widths = {r.view.name: r.view.strides[0] for r in shard_map.held_by(here.world.rank)}
    weights = {name: tensor.view(-1, widths[name]) for name, tensor in found.items()}
    return SimpleNamespace(
        shard_map=shard_map, weights=weights, dtype=getattr(torch, dtype), config=config, **nothing
    )


TYPES = [*product(ITEM, ITEM, [False]), *product(ITEM, ["bfloat16"], [True])]


@pytest.mark.world(2)
@pytest.mark.parametrize(
    "dtype, travels, quantised", TYPES, ids=lambda value: "fp8" if value is True else str(value)
)
@pytest.mark.parametrize("model", ["dense", "dense-some", "experts"])
def test_weights_are_merged_in_float32_and_rounded_once(
    here, tiny_model, model, dtype, travels, quantised
):
    """Bit for bit where B A has few bits, whatever types trainer and engine have; what is quantised
    is as vLLM quantises the merged weights."""
    lora = SOME if model == "dense-some" else LORA
    if model == "experts":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        sizes = {"hidden_size": 256, "num_hidden_layers": 2, **experts, **HEADS}
        directory = tiny_model("qwen3_moe", False, **sizes)
    else:
        sizes = SMALL | {"hidden_size": 512, "intermediate_size": 1024}
        directory = tiny_model("qwen2", False, **sizes, **HEADS)
    more = {"sequence_parallel": True, "dtype": dtype, "lora": lora}
    trainer = build_engine(here, directory, TrainLayout(tp=2), **more)
    config = FP8 if quantised else ROLLOUT
    rollout = an_engine(here, trainer.arch, ((0,), (1,)), config, travels)
    kind = getattr(torch, travels)
    base = gathered(here, trainer.shard_map, trainer.weights)
    for adapters in refits(here, trainer, rollout, lora, travels):
        expected = {n: merged(w, n, adapters, lora.scale).to(kind) for n, w in base.items()}
        names = quantised_tensors(trainer.arch, ()) if quantised else ()
        expected = as_vllm_quantises(expected, names) if quantised else expected
        check_arrived(here, rollout.shard_map, rollout.weights, expected)


# ------------------------------------------------------------------------------ runs

APART = {"actor": 0, "rollout": 1}
PLACED = {
    "apart": {"placement": APART, "rollout": {"engine": "vllm", "kv_cache_gib": 0.05}},
    "ahead": {
        "placement": APART,
        "rollout": {"engine": "hf", "staleness": 1},
        "algorithm": {"correction": {}},
    },
    "together": {
        "parallel": {"tensor_parallel": 2},
        "offload": {"parameters": True, "gradients": True, "optimizer": True},
        "rollout": {"engine": "vllm", "kv_cache_gib": 0.05},
        "evaluation": {"every": 2, "at_start": True},
    },
}


@pytest.mark.world(2)
@pytest.mark.parametrize("case", ["ahead", "together", *all_slow("apart")])
def test_runs_send_the_base_once_a_life(here, tiny_model, shared_directory, case):
    """Then A and B alone, those that the generating ranks have not; also after a resume, which goes
    on as a run without one does."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}
    model = tiny_model("qwen3", False, num_hidden_layers=2, **heads)
    changes = PLACED[case] | {
        "recipe": "rl",
        "steps": 4,
        "lora": {"rank": 4, "alpha": 8.0},
        "optimizer": {"lr": 1e-2},
        "rollout": RECIPE_ROLLOUT | PLACED[case]["rollout"],
        "reward": {"function": write_reward(here, shared_directory)},
        "checkpoint": {"every": 2},
    }
    if "evaluation" in changes:
        changes["data"] = {
            name: {"kind": "reasoning_gym", "task": "chain_sum", "size": 30, "split": name}
            for name in ("train", "evaluation")
        }
    whole = finish(here, configure(f"alone-{case}", model, shared_directory, **changes))
    name = f"alone-resumed-{case}"
    first = finish(here, configure(name, model, shared_directory, **changes | {"steps": 2}))
    second = finish(here, configure(name, model, shared_directory, **changes))
    arch = read_architecture(model)
    sizes = {n: s.num_bytes for n, s in adapter_tensors(arch, AdapterShape(4), "float32").items()}
    alone = sum(sizes.values())
    if case == "together":
        # Both ranks lack half of each factor that a layer's ranks share.
        columns = ("o_proj", "down_proj")
        shared = [n for n in sizes if (n.split(".")[-3] in columns) == ("lora_A" in n)]
        alone = sum(sizes[n] for n in shared)
    for rows in (whole, second[len(first) :]):
        told = (row.get("reshard/received_bytes") for row in rows)
        received = [num_bytes for num_bytes in told if num_bytes is not None]
        assert received[1:] == [alone] * (len(received) - 1) and len(received) >= 2
        assert received[0] > 4 * alone
    assert first == second[: len(first)]
    if case == "ahead":
        return  # the run of two steps generates nothing ahead for a third one
    steps = [(one, other) for one, other in zip(whole, second, strict=True) if one["step"]]
    assert len(steps) == 4
    for one, other in steps:
        assert one["actor/grad_norm"] == other["actor/grad_norm"] > 0
        assert 0 < one["training/rollout_log_probs_diff_max"] < 1e-5
