"""Adapters as logical tensors: every element is somewhere, and where its weight's is."""

import pytest
import torch

from verl_hpc.config.lora import LoraConfig
from verl_hpc.errors import LayoutError, ModelError
from verl_hpc.layout.adapters import (
    AdapterShape,
    a_of,
    adapter_shard_map,
    adapter_tensors,
    b_of,
    factor_map,
    factor_name,
    factors_of,
    local_adapters,
    merged_source,
    trained_map,
)
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import fsdp_shard_map
from verl_hpc.layout.generation import generation_groups
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.published import Published
from verl_hpc.layout.rollout import staged_shard_map, whole_shard_map

DENSE = Architecture("qwen3", 4, 16, 24, 4, 2, 6, 50, True)
EXPERTS = Architecture("qwen3_moe", 2, 16, 8, 4, 4, 4, 50, False, num_experts=4)
CASES = [
    (DENSE, TrainLayout(), ()),
    (DENSE, TrainLayout(tp=2, pp=2, dp=2), ()),
    (DENSE, TrainLayout(tp=4), ()),
    (DENSE, TrainLayout(tp=2, pp=2, vpp=2), ("v_proj", "q_proj", "down_proj")),
    (EXPERTS, TrainLayout(tp=2, dp=2, ep=2, etp=2), ()),
    (EXPERTS, TrainLayout(tp=2, dp=2, pp=2, ep=4), ("gate_proj", "k_proj")),
]


@pytest.mark.parametrize(("arch", "layout", "targets"), CASES)
def test_every_rank_can_merge_what_it_has(arch, layout, targets):
    """B A, of the pieces of A and B on a rank, is what its piece of the weight is given."""
    shape = AdapterShape(3, targets)
    base = megatron_shard_map(arch, layout)
    adapters = adapter_shard_map(arch, base, shape)
    whole = {
        name: torch.randint(-9, 9, spec.shape).double()
        for name, spec in adapter_tensors(arch, shape).items()
    }
    assert adapters.tensors.keys() == whole.keys()
    seen = {name: torch.zeros(spec.shape) for name, spec in adapters.tensors.items()}
    for rank in layout.grid.ranks():
        memory: dict[str, torch.Tensor] = {}
        for region in adapters.held_by(rank):
            flat = memory.setdefault(region.view.name, torch.full((5000,), float("nan")).double())
            to = flat.as_strided(region.box.shape, region.view.strides, region.view.offset)
            to.copy_(whole[region.tensor][region.box.slices])
            seen[region.tensor][region.box.slices] = 1
        regions = {}
        for region in base.held_by(rank):
            regions.setdefault(region.view.name, []).append(region)
        for one in local_adapters(arch, base, shape, rank):
            a = memory[a_of(one.weight)][: len(one.targets) * 3 * one.num_inputs]
            a = a.view(len(one.targets), 3, one.num_inputs)
            b = memory[b_of(one.weight)][: one.num_rows * 3].view(-1, 3)
            products = {}
            for index, start, stop in one.blocks:
                rows, b = b[: stop - start], b[stop - start :]
                products[start] = (one.targets[index], rows @ a[index])
            for region in regions[one.weight]:
                start = region.view.offset // one.num_inputs
                if start in products:
                    name, product = products[start]
                    assert name == region.tensor
                    expected = whole[f"{b_of(name)}.weight"] @ whole[f"{a_of(name)}.weight"]
                    assert torch.equal(product, expected[region.box.slices])
    assert all(marks.all() for marks in seen.values())


def engines_of(arch, layout):
    """Maps of rollout engines on the ranks of a training layout."""
    ranks = layout.num_ranks
    if not arch.is_moe:
        yield whole_shard_map(arch, tuple((rank,) for rank in range(ranks)), "float32")
    for size, stages in ((1, 1), (2, 1), (2, 2), (4, 2)):
        if ranks % size == 0 and arch.num_layers % stages == 0:
            groups = generation_groups(layout.grid, size // stages, "contiguous", stages)
            whole_experts = (False, True) if arch.is_moe else (False,)
            for one in whole_experts:
                yield staged_shard_map(arch, groups, stages, "float32", one)


@pytest.mark.parametrize(("arch", "layout", "targets"), CASES)
def test_a_rank_receives_what_it_merges_with_and_nothing_else(arch, layout, targets):
    """B A, of what arrives, is what each of its regions is given; every element of A and B that is
    needed and not held arrives once."""
    shape = AdapterShape(3, targets)
    adapters = adapter_shard_map(arch, megatron_shard_map(arch, layout, dtype="float32"), shape)
    whole = {n: torch.randint(-9, 9, s.shape).double() for n, s in adapters.tensors.items()}
    held = {}
    for rank in layout.grid.ranks():
        held[rank] = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in whole.items()}
        for region in adapters.held_by(rank):
            held[rank][region.tensor][region.box.slices] = True
    for engines in engines_of(arch, layout):
        target = factor_map(engines, adapters)
        received = plan_transfer(adapters, target, [0] * layout.num_ranks).received_bytes
        for rank in layout.grid.ranks():
            arrived = {r.view.name: whole[r.tensor][r.box.slices] for r in target.held_by(rank)}
            assert len(arrived) == len(target.held_by(rank))
            needed = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in whole.items()}
            for region in engines.held_by(rank):
                b, a = f"{b_of(region.tensor)}.weight", f"{a_of(region.tensor)}.weight"
                if a in whole:
                    first, second = (factor_name(*f) for f in factors_of(region, 3))
                    expected = (whole[b] @ whole[a])[region.box.slices]
                    assert torch.equal(arrived[second] @ arrived[first], expected)
                    needed[b][region.box.slices[0]] = True
                    needed[a][:, region.box.slices[1]] = True
            lacking = sum(int((needed[n] & ~held[rank][n]).sum()) for n in whole)
            assert received.get(rank, 0) == 4 * lacking


def test_names_and_shapes_are_those_of_peft():
    found = adapter_tensors(DENSE, AdapterShape(3, ("k_proj", "down_proj")))
    assert len(found) == 4 * 2 * 2
    assert found["model.layers.3.self_attn.k_proj.lora_A.weight"].shape == (3, 16)
    assert found["model.layers.3.self_attn.k_proj.lora_B.weight"].shape == (12, 3)
    assert found["model.layers.0.mlp.down_proj.lora_A.weight"].shape == (3, 24)
    of_experts = adapter_tensors(EXPERTS, AdapterShape(3))
    assert "model.layers.1.mlp.experts.3.up_proj.lora_B.weight" in of_experts
    assert not any(".gate.lora" in name for name in of_experts)  # the router


def test_what_cannot_have_adapters_is_refused_by_name():
    with pytest.raises(ModelError, match=r"lora.target_modules: lm_head is no linear layer .*q_pr"):
        adapter_tensors(DENSE, AdapterShape(3, ("lm_head",)))
    base = megatron_shard_map(DENSE, TrainLayout(tp=4))
    with pytest.raises(LayoutError, match=r"lora.target_modules: rank \d has no row of k_proj"):
        adapter_shard_map(DENSE, base, AdapterShape(3, ("k_proj",)))
    fused = megatron_shard_map(EXPERTS, TrainLayout(), backend="transformer_engine")
    with pytest.raises(ModelError, match=r"Transformer Engine computes all experts' gate_proj"):
        adapter_shard_map(EXPERTS, fused, AdapterShape(3))
    adapter_shard_map(EXPERTS, fused, AdapterShape(3, ("q_proj", "o_proj")))


SHAPES = {
    "model.embed_tokens.weight": (50, 4),
    "model.layers.0.self_attn.q_proj.weight": (5, 4),
    "model.layers.0.mlp.gate.weight": (2, 4),
    "model.layers.0.mlp.experts.gate_up_proj": (2, 8, 4),
    "model.layers.0.mlp.shared_expert.up_proj.weight": (8, 4),
    "model.layers.0.mlp.shared_expert_gate.weight": (1, 4),
    "model.layers.0.linear_attn.conv1d.weight": (4, 1, 3),
    "model.visual.blocks.0.attn.proj.weight": (4, 4),
}


def test_what_files_tell_of_the_layers_that_may_have_adapters():
    arch = Architecture("qwen3_next", 1, 4, 8, 1, 1, 4, 50, False, published=Published({}, SHAPES))
    wanted = ["self_attn.q_proj", "mlp.shared_expert_gate"]
    specs = adapter_tensors(arch, AdapterShape(3), "float32")
    assert {name: spec.shape for name, spec in specs.items()} == {
        f"model.layers.0.{name}.lora_{factor}.weight": shape
        for name, rows in zip(wanted, (5, 1), strict=True)
        for factor, shape in (("A", (3, 4)), ("B", (rows, 3)))
    }
    for other in ("gate", "up_proj", "gate_up_proj", "conv1d", "proj", "embed_tokens"):
        with pytest.raises(ModelError, match=f"{other} is no .* these are q_proj, shared_expert_"):
            adapter_tensors(arch, AdapterShape(3, ("q_proj", other)))


@pytest.mark.parametrize("shard_size", [None, 2])
def test_a_rank_of_fully_shard_has_the_same_rows_of_b_as_of_the_weight(shard_size):
    layout = TrainLayout(dp=4, shard_size=shard_size)
    base = fsdp_shard_map(DENSE, layout, head="value", dtype="bfloat16", head_dtype="float32")
    lora = LoraConfig(rank=3)
    trained = trained_map(DENSE, base, "value", lora, layout)
    assert {spec.dtype for spec in trained.tensors.values()} == {"float32"}
    assert "value_head.weight" in trained.tensors
    rows = {(r.tensor, r.holders): r.box.slices[0] for r in base.regions}
    seen = 0
    for region in trained.regions:
        weight = region.tensor.replace(".lora_B", "")
        if weight != region.tensor and ".lora_A" not in weight:
            assert region.box.slices[0] == rows[weight, region.holders]
            seen += 1
    assert seen == 4 * 7 * (shard_size or 4)
    merged = merged_source(base, whole_shard_map(DENSE, [(0,)], "float16"), trained)
    kinds = {spec.dtype: name for name, spec in merged.tensors.items()}
    assert kinds.keys() == {"float16", "bfloat16", "float32"}
    assert merged.tensors["model.layers.0.self_attn.q_proj.weight"].dtype == "float16"
    assert merged.tensors["model.norm.weight"].dtype == "bfloat16"
