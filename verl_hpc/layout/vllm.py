"""Shard map of vLLM, at any tensor-parallel size.

`qkv_proj` stacks a rank's query heads, its key heads and its value heads; with fewer key/value
heads than ranks, each of those is replicated. `gate_up_proj` stacks gate rows over up rows.
Vocabulary rows are padded to a multiple of 64. Experts are stacked along a leading dimension: a
part of each on every rank, or, with expert parallelism, whole ones, an equal number of neighbours.
Parameter names and shapes follow vLLM 0.32 (`model_executor/models`, `layers/linear.py`,
`layers/vocab_parallel_embedding.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import check_divides, check_key_value_heads
from verl_hpc.layout.layer_regions import parameter_regions, placed
from verl_hpc.layout.layer_table import by_parameter
from verl_hpc.layout.megatron import padded_vocab, tensor_parallel_sizes
from verl_hpc.layout.shard_map import Holder, Region, ShardMap, TensorSpec, padded_rows, whole

VOCAB_MULTIPLE = 64


CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Elements of a head that vLLM's attention has kernels for on CPUs."""


CPU_LATENT_SIZES = (512, 64)
"""The `kv_lora_rank` and `qk_rope_head_dim` that vLLM's multi-latent attention takes on CPUs."""


def check_cpu_heads(
    size: int, asked: str = "rollout.engine = vllm", instead: str = "rollout.engine: hf"
) -> None:
    """Check early that vLLM's attention has a kernel for this head size on CPUs; vLLM itself would
    fail at the first response with an error that does not name the cause.

    Args:
        size: elements of a head of the model.
        asked: the setting that asks for vLLM.
        instead: what takes such a model.

    Raises:
        ConfigError: vLLM's attention on CPUs has no kernel for heads of this size.
    """
    if size not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"{asked}: the model's heads have {size} elements, and vLLM's attention on CPUs takes "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}; choose another model, or {instead}"
        )


def check_cpu_attention(arch: Architecture) -> None:
    """Check early that vLLM's attention has a kernel for a mapped model on CPUs.

    Raises:
        ConfigError: it has none.
    """
    if arch.latent is None:
        check_cpu_heads(arch.head_size)
    elif (sizes := (arch.latent.kv_rank, arch.latent.rope_size)) != CPU_LATENT_SIZES:
        raise ConfigError(
            f"rollout.engine = vllm: the model has kv_lora_rank {sizes[0]} and qk_rope_head_dim "
            f"{sizes[1]}, and vLLM's multi-latent attention on CPUs takes {CPU_LATENT_SIZES[0]} "
            f"and {CPU_LATENT_SIZES[1]} alone; choose another model, or rollout.engine: hf with "
            "parallel.engine: fsdp"
        )


def check_vllm_layout(arch: Architecture, tp: int, expert_parallel: bool = False) -> None:
    """Refuse a tensor-parallel size that vLLM cannot shard this model by.

    Args:
        arch: the model.
        tp: ranks that share a layer.
        expert_parallel: whether each has whole experts.

    Raises:
        LayoutError: naming the two numbers that do not divide, or a model without experts.
    """
    if expert_parallel and not arch.is_moe:
        raise LayoutError(f"rollout expert_parallel: a {arch.family} has no experts; leave it out")
    axis = "rollout tensor_parallel"
    if arch.is_mapped or arch.num_heads > 1:  # recurrent layers have none
        check_divides(axis, tp, arch.num_heads, "attention heads")
    if expert_parallel:
        check_divides(axis, tp, arch.num_experts, "experts")
    elif arch.is_moe:
        check_divides(axis, tp, arch.ffn_size, "ffn size")
    for size, what in (
        tensor_parallel_sizes(arch) if arch.is_mapped else ()
    ):  # others' layers differ
        check_divides(axis, tp, size, what)
    if padded_vocab(arch.vocab_size, 1, VOCAB_MULTIPLE) % tp:
        raise LayoutError(
            f"{axis} = {tp} does not divide the model's vocabulary of {arch.vocab_size} rows "
            f"padded to a multiple of {VOCAB_MULTIPLE}; choose a power of 2"
        )
    check_key_value_heads(axis, tp, arch.num_kv_heads)


def vllm_shard_map(
    arch: Architecture,
    replicas: Sequence[tuple[int, ...]],
    dtype: str | None = None,
    expert_parallel: bool = False,
) -> ShardMap:
    """Shard map of vLLM engines, one per entry of `replicas` (its ranks in tp order).

    Llama with 2 key/value heads on replicas (0, 1, 2, 3) and (4, 5, 6, 7): ranks 0, 1, 4 and 5
    hold key head 0, ranks 2, 3, 6 and 7 hold key head 1. With `expert_parallel` 8 experts on the
    replica (0, 2) are experts 0 to 3 on rank 0 and 4 to 7 on rank 2.

    Raises:
        LayoutError: the size does not divide the model.
    """
    tp = len(replicas[0])
    assert all(len(group) == tp for group in replicas)
    check_vllm_layout(arch, tp, expert_parallel)
    shards: list[tuple[Holder, ...]] = [
        tuple(sorted(group[t] for group in replicas)) for t in range(tp)
    ]
    everyone = tuple(sorted(rank for group in replicas for rank in group))
    # vLLM pads to 64 rows in all, not per rank.
    num_rows = padded_vocab(arch.vocab_size, 1, VOCAB_MULTIPLE)
    embedding, norm, output = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
    table = arch.layer_table
    vocabulary = partial(
        padded_rows, shape=(arch.vocab_size, arch.hidden_size), num_rows=num_rows, shards=shards
    )
    regions = list(vocabulary(table.vllm_embedding, embedding))
    layers = {
        alike: list(_layer(arch, alike, everyone, shards, expert_parallel))
        for alike in arch.layer_kinds
    }
    for number in range(arch.num_layers):
        prefix = f"model.layers.{number}"
        regions += placed(layers[arch.first_alike(number)], prefix, prefix)
    regions.append(whole(norm, norm, (arch.hidden_size,), everyone))
    if not arch.tied_embeddings:
        regions += vocabulary(output, output)
    return ShardMap(_tensors(arch, dtype), regions)


def _tensors(arch: Architecture, dtype: str | None) -> dict[str, TensorSpec]:
    """The model's tensors; some vLLM has in float32 whatever the type of the others."""
    tensors = arch.tensors(dtype)
    for layer in range(arch.num_layers):
        for row in arch.table_of(layer).rows:
            if row.is_float32_in_vllm:
                name = f"model.layers.{layer}.{row.name}"
                tensors[name] = TensorSpec(tensors[name].shape, "float32")
    return tensors


def _layer(
    arch: Architecture,
    layer: int,
    everyone: tuple[Holder, ...],
    shards: Sequence[tuple[Holder, ...]],
    expert_parallel: bool,
) -> Iterator[Region]:
    """A decoder layer, names below the layer."""
    table = arch.table_of(layer)
    for name, rows in by_parameter(table.rows, "vllm").items():
        yield from parameter_regions(arch, name, rows, everyone, shards)
    for expert in range(arch.num_experts if table.expert_rows else 0):
        holders, index = shards, expert
        if expert_parallel:  # one rank has the whole expert, with others of its own
            place, index = divmod(expert, arch.num_experts // len(shards))
            holders = shards[place : place + 1]
        mine = [row.of_expert(expert) for row in table.expert_rows]
        for name, rows in by_parameter(mine, "vllm").items():
            parts = 1 if rows[0].split == "whole" else len(holders)
            share = sum(prod(arch.shape(row)) for row in rows) // parts
            yield from parameter_regions(
                arch, name, rows, holders[0], holders, offset=index * share
            )
