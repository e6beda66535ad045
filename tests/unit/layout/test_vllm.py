"""vLLM's memory, built tensor by tensor with numpy, against the shard map."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.layout.models import EXPERT_NAMES, LATENT, architecture, deepseek, moe
from tests.unit.layout.simulate import (
    check_memory,
    filled_memory,
    logical_values,
    padded_rows,
    split,
)
from verl_hpc.errors import LayoutError
from verl_hpc.layout.vllm import vllm_shard_map

NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")


def attention(arch, tp, t, values, prefix):
    """A rank's q heads over its k heads over its v heads; k and v replicated where they run out."""
    parameters = {}
    parts, part = (
        (tp, t) if arch.num_kv_heads >= tp else (arch.num_kv_heads, t * arch.num_kv_heads // tp)
    )
    for kind in ["weight", "bias"][: 1 + arch.qkv_bias]:
        q, k, v = (values[f"{prefix}.{p}_proj.{kind}"] for p in "qkv")
        parameters[f"{prefix}.qkv_proj.{kind}"] = np.concatenate(
            [split(q, tp, t), split(k, parts, part), split(v, parts, part)]
        )
    name = f"{prefix}.o_proj.weight"
    parameters[name] = split(values[name], tp, t, axis=1)
    for head in "qk" * arch.qk_norm:
        parameters[f"{prefix}.{head}_norm.weight"] = values[f"{prefix}.{head}_norm.weight"]
    return parameters


def latent_attention(arch, tp, t, values, prefix):
    """Down projections whole in one parameter, or alone where queries have none; heads split."""
    q_a, kv_a = f"{prefix}.q_a_proj.weight", f"{prefix}.kv_a_proj_with_mqa.weight"
    split_by_rows, whole = ["kv_b_proj"], ["kv_a_layernorm"]
    if arch.latent.q_rank:
        fused = np.concatenate([values[q_a], values[kv_a]])
        parameters = {f"{prefix}.fused_qkv_a_proj.weight": fused}
        split_by_rows, whole = [*split_by_rows, "q_b_proj"], [*whole, "q_a_layernorm"]
    else:
        parameters = {kv_a: values[kv_a]}
        split_by_rows += ["q_proj"]
    names = [f"{prefix}.{name}.weight" for name in split_by_rows]
    parameters |= {name: split(values[name], tp, t) for name in names}
    parameters |= {f"{prefix}.{n}.weight": values[f"{prefix}.{n}.weight"] for n in whole}
    output = f"{prefix}.o_proj.weight"
    return parameters | {output: split(values[output], tp, t, axis=1)}


def mlp(tp, t, values, prefix):
    gate, up = (split(values[f"{prefix}.{n}_proj.weight"], tp, t) for n in ("gate", "up"))
    name = f"{prefix}.down_proj.weight"
    return {
        f"{prefix}.gate_up_proj.weight": np.concatenate([gate, up]),
        name: split(values[name], tp, t, axis=1),
    }


def experts(arch, tp, t, values, prefix):
    """Part of every expert: (experts, 2 width, hidden) and (experts, hidden, width)."""
    names = EXPERT_NAMES[arch.family]
    base = f"{prefix}.{names.experts}"
    w13, w2 = [], []
    for e in range(arch.num_experts):
        gate, up, down = (
            values[f"{base}.{e}.{n}.weight"] for n in (names.gate, names.up, names.down)
        )
        w13.append(np.concatenate([split(gate, tp, t), split(up, tp, t)]))
        w2.append(split(down, tp, t, axis=1))
    router = f"{prefix}.{names.router}"
    return {
        router: values[router],
        f"{base}.routed_experts.w13_weight": np.stack(w13),
        f"{base}.routed_experts.w2_weight": np.stack(w2),
    }


def whole_experts(arch, tp, t, values, prefix):
    """Those of a rank: (experts / tp, 2 ffn, hidden) and (experts / tp, hidden, ffn)."""
    parameters = experts(arch, 1, 0, values, prefix)
    share = arch.num_experts // tp
    return {
        name: value[t * share : (t + 1) * share] if "routed" in name else value
        for name, value in parameters.items()
    }


def local_tensors(arch, tp, t, values, expert_parallel=False):
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    parameters = {embedding: padded_rows(values[embedding], 64, tp, t)}
    for layer in range(arch.num_layers):
        prefix = f"model.layers.{layer}"
        parameters |= {f"{prefix}.{norm}": values[f"{prefix}.{norm}"] for norm in NORMS}
        of_attention = latent_attention if arch.latent else attention
        parameters |= of_attention(arch, tp, t, values, f"{prefix}.self_attn")
        of_experts = whole_experts if expert_parallel else experts
        if arch.is_moe and layer >= arch.num_dense_layers:
            parameters |= of_experts(arch, tp, t, values, prefix)
            if arch.shared_ffn_size:
                parameters |= mlp(tp, t, values, f"{prefix}.mlp.shared_experts")
            if arch.router.has_bias:
                bias = f"{prefix}.mlp.gate.e_score_correction_bias"
                parameters[bias] = values[bias]
        else:
            parameters |= mlp(tp, t, values, f"{prefix}.mlp")
    parameters["model.norm.weight"] = values["model.norm.weight"]
    if not arch.tied_embeddings:
        parameters[head] = padded_rows(values[head], 64, tp, t)
    return parameters


def check(arch, replicas, expert_parallel=False):
    shard_map = vllm_shard_map(arch, replicas, expert_parallel=expert_parallel)
    memory, values = filled_memory(shard_map), logical_values(shard_map)
    assert set(shard_map.holders) == {rank for group in replicas for rank in group}
    for group in replicas:
        for t, rank in enumerate(group):
            wanted = local_tensors(arch, len(group), t, values, expert_parallel)
            check_memory(memory[rank], wanted)


REPLICAS = [
    [(0,)],
    [(0,), (1,)],
    [(0, 2), (1, 3)],
    [(3, 1, 0, 2)],
    [tuple(range(8)), tuple(range(8, 16))],
]


@pytest.mark.parametrize("replicas", REPLICAS, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": True},
        {"family": "qwen2"},
        {"family": "qwen3"},
        {"num_kv_heads": 1},
        {"num_kv_heads": 8, "head_size": 3},
        {"vocab_size": 65},
    ],
    ids=["llama", "tied", "qwen2", "qwen3", "multi-query", "multi-head", "padded"],
)
def test_memory_of_every_rank(replicas, changes):
    check(architecture(num_layers=2, **changes), replicas)


@pytest.mark.parametrize("replicas", REPLICAS, ids=str)
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("whole", [False, True])
def test_memory_of_experts(replicas, family, whole):
    check(moe(family, num_layers=2, num_experts=8), replicas, expert_parallel=whole)


@pytest.mark.parametrize("replicas", REPLICAS, ids=str)
@pytest.mark.parametrize("q_rank", [None, 8])
@pytest.mark.parametrize("whole", [False, True])
def test_memory_of_latent_attention_and_layers_of_two_kinds(replicas, q_rank, whole):
    sizes = {"num_experts": 8, "ffn_size": 8, "dense_ffn_size": 16}
    arch = deepseek(num_layers=3, latent=replace(LATENT, q_rank=q_rank), **sizes)
    check(arch, replicas, expert_parallel=whole)


def test_whole_experts_need_no_ffn_size_that_divides():
    arch = moe(num_layers=1, num_experts=4, ffn_size=6)
    with pytest.raises(LayoutError, match="6 ffn size"):
        vllm_shard_map(arch, [(0, 1, 2, 3)])
    check(arch, [(0, 1, 2, 3)], expert_parallel=True)


@pytest.mark.parametrize(
    "arch, words",
    [
        (moe(num_experts=6), "tensor_parallel = 4 does not divide the model's 6 experts; choose"),
        (architecture(), "rollout expert_parallel: a llama has no experts; leave it out"),
    ],
)
def test_experts_that_cannot_be_divided(arch, words):
    with pytest.raises(LayoutError, match=words):
        vllm_shard_map(arch, [(0, 1, 2, 3)], expert_parallel=True)


def test_the_type_that_travels():
    assert vllm_shard_map(architecture(), [(0,)]).tensors["lm_head.weight"].dtype == "float32"
    half = vllm_shard_map(architecture(), [(0,)], "float16")
    assert {spec.dtype for spec in half.tensors.values()} == {"float16"}


@pytest.mark.parametrize(
    "changes, tp, words",
    [
        ({}, 3, ["rollout tensor_parallel = 3", "8 attention heads", "divisor of 8"]),
        ({"ffn_size": 6}, 4, ["rollout tensor_parallel = 4", "6 ffn size"]),
        (
            {"num_heads": 6, "num_kv_heads": 6, "ffn_size": 6},
            3,
            ["rollout tensor_parallel = 3", "70 rows", "multiple of 64", "power of 2"],
        ),
        (
            {"num_heads": 24, "num_kv_heads": 6},
            4,
            ["rollout tensor_parallel = 4", "6 key/value heads", "one must divide the other"],
        ),
    ],
)
def test_sizes_that_vllm_cannot_shard_by_are_named(changes, tp, words):
    with pytest.raises(LayoutError) as caught:
        vllm_shard_map(architecture(**changes), [tuple(range(tp))])
    assert [word for word in words if word not in str(caught.value)] == []
