"""Bytes of a rollout engine on one rank: weights by its shard map, cache, and the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Literal

from verl_hpc.config.rollout import Engine, RolloutConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import cache_bytes_per_token, layers_per_rollout_stage
from verl_hpc.layout.megatron import padded_vocab
from verl_hpc.layout.quantization import fused_modules, ignored_modules, quantised_engine
from verl_hpc.layout.rollout import PART_BYTES
from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.layout.vllm import VOCAB_MULTIPLE, vllm_shard_map

GRAPHS = 2**30
"""CUDA graphs of vLLM's 51 batch sizes: an assumption, from its logs of 7B to 70B models."""
WORKSPACE = 2**29
"""Buffers outside vLLM's pools, which sleeping does not give back: attention's workspace (394 MiB
with FlashInfer), the inputs of graphs, the sampler's."""
_BATCHED_TOKENS = 16384
"""Default of vLLM on large GPUs: prompt tokens computed at a time."""
_MOST_SEQUENCES = 1024
_CPU_CACHE_GIB = 1


@dataclass(frozen=True)
class RolloutShape:
    """Settings that decide an engine's memory; hashable."""

    arch: Architecture
    dtype: str
    tp: int
    pp: int
    expert_parallel: bool
    engine: Engine
    longest: int
    """Tokens of a prompt and its response."""
    utilization: float
    cache_gib: float | None
    sequences: int
    eager: bool
    batched_tokens: int
    on_gpu: bool
    quantization: Literal["fp8"] | None = None
    ignored_layers: tuple[str, ...] = ()
    cache_item_bytes: int = 2
    """Bytes of an element of a key or a value."""

    @classmethod
    def of(
        cls,
        arch: Architecture,
        config: RolloutConfig,
        dtype: str,
        on_gpu: bool,
        longest_response: int | None = None,
    ) -> RolloutShape:
        """Build a shape from the arguments of `rollout.factory.build_rollout`."""
        tokens = config.engine_options.get("max_num_batched_tokens")
        return cls(
            replace(arch, rope_scaling=None, rope_theta=1.0),
            dtype,
            config.tensor_parallel,
            config.pipeline_parallel,
            config.expert_parallel,
            config.engine,
            config.max_prompt_tokens + (longest_response or config.max_response_tokens),
            config.gpu_memory_utilization,
            config.kv_cache_gib,
            config.max_num_seqs or _MOST_SEQUENCES,
            config.enforce_eager,
            tokens if isinstance(tokens, int) else _BATCHED_TOKENS,
            on_gpu,
            config.quantization,
            tuple(config.ignored_layers),
            1 if config.kv_cache_dtype == "fp8" else ITEM_BYTES[dtype],
        )

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]


def rollout_shape(
    config: RunConfig, arch: Architecture, on_gpu: bool, tensor_parallel: int | None = None
) -> RolloutShape:
    """Shape of a run's rollout engines.

    Args:
        config: of the run.
        arch: of the role that generates.
        on_gpu: whether its ranks have GPUs.
        tensor_parallel: size to use in place of the configured one.
    """
    rollout = config.rollout
    if tensor_parallel is not None:
        rollout = rollout.model_copy(update={"tensor_parallel": tensor_parallel})
    return RolloutShape.of(arch, rollout, config.rollout_dtype, on_gpu, config.longest_response)


@lru_cache(maxsize=1024)
def _layer_bytes(
    arch: Architecture,
    layer: int,
    tp: int,
    expert_parallel: bool,
    dtype: str,
    quantised: frozenset[str],
) -> int:
    """Bytes of a decoder layer on one rank.

    Args:
        layer: its number, or that of one like it.
        quantised: its linear layers, names below it.
    """
    ranks = [tuple(range(tp))]
    one = vllm_shard_map(arch.one_layer(layer), ranks, dtype, expert_parallel)
    prefix = "model.layers.0."
    if quantised:
        one = quantised_engine(one, [f"{prefix}{module}.weight" for module in quantised])
    return sum(
        r.box.num_elements * ITEM_BYTES[one.tensors[r.tensor].dtype]
        for r in one.held_by(0)
        if r.tensor.startswith(prefix)
    )


def quantised_modules(shape: RolloutShape, layer: int) -> frozenset[str]:
    """Linear layers of a decoder layer that are quantised, names below it."""
    if shape.quantization is None:
        return frozenset()
    left_out = ignored_modules(shape.arch, shape.ignored_layers, layer)
    every = {module for group in fused_modules(shape.arch) for module in group}
    return frozenset(every.difference(left_out))


@lru_cache(maxsize=4096)
def rollout_weights(shape: RolloutShape, stage: int = 0) -> int:
    """Bytes of parameters on one rank of one pipeline stage of the engine."""
    arch = shape.arch
    if shape.engine == "hf":
        return arch.num_parameters * shape.item_bytes
    if not arch.is_mapped:  # vLLM divides all large tensors
        return -(-arch.num_parameters // shape.tp) * shape.item_bytes
    last = shape.pp - 1
    per_stage = layers_per_rollout_stage(arch.num_layers, shape.pp)
    rows = padded_vocab(arch.vocab_size, 1, VOCAB_MULTIPLE) // shape.tp
    layers = [
        (arch.first_alike(n), quantised_modules(shape, n))
        for n in range(stage * per_stage, (stage + 1) * per_stage)
    ]
    elements = 0
    # vLLM's mixtures hold embedding, final norm and output layer on every stage.
    if stage == 0 or arch.is_moe or (stage == last and arch.tied_embeddings):
        elements += rows * arch.hidden_size
    if stage == last or arch.is_moe:
        elements += arch.hidden_size
        elements += 0 if arch.tied_embeddings else rows * arch.hidden_size
    decoder = Counter(layers)
    return elements * shape.item_bytes + sum(
        count * _layer_bytes(arch, layer, shape.tp, shape.expert_parallel, shape.dtype, quantised)
        for (layer, quantised), count in decoder.items()
    )


def arriving_part(shape: RolloutShape) -> int:
    """Bytes of the whole tensors that are on their way into an engine at a time, of a family whose
    weights reach it by their names."""
    largest = max(prod(spec.shape) for spec in shape.arch.tensors().values())
    whole = shape.arch.num_parameters
    return max(largest * shape.item_bytes, min(whole * shape.item_bytes, PART_BYTES))


def least_cache(shape: RolloutShape) -> int:
    """Bytes of the cache of one longest sequence, the least with which vLLM starts."""
    return shape.longest * cache_bytes_per_token(
        shape.arch, shape.tp, shape.pp, shape.cache_item_bytes
    )


@lru_cache(maxsize=4096)
def rollout_work(shape: RolloutShape) -> int:
    """Work memory of the largest step: a layer's activations, or the sampler's logits of every
    sequence in float32, gathered over the tensor-parallel ranks, with a copy to sort or
    normalise."""
    if shape.engine != "vllm":
        return 0
    arch = shape.arch
    hidden = arch.hidden_size
    ffn = arch.ffn_size if shape.expert_parallel else arch.ffn_size // shape.tp
    width = 3 * ffn
    if arch.is_moe:
        # Two buffers with a row for each expert of a token, experts on other ranks included
        # (`TritonExperts.workspace_shapes`).
        width = arch.experts_per_token * (max(ffn, hidden) + max(2 * ffn, hidden))
        width = max(
            width + 3 * arch.shared_ffn_size // shape.tp, 3 * arch.dense_ffn_size // shape.tp
        )
    layer = shape.batched_tokens * (3 * hidden + width) * shape.item_bytes
    sampler = shape.sequences * arch.vocab_size * (4 + 4 + shape.item_bytes)
    return max(layer, sampler)


def graphs(shape: RolloutShape) -> int:
    """Bytes of the CUDA graphs that are captured when the engine is built."""
    return GRAPHS if shape.on_gpu and shape.engine == "vllm" and not shape.eager else 0


def asleep(shape: RolloutShape) -> int:
    """Bytes that stay on the device while an engine sleeps."""
    if shape.engine != "vllm" or not shape.on_gpu:
        return 0
    return WORKSPACE + graphs(shape)


def share(shape: RolloutShape, device_bytes: int) -> int:
    """Bytes of the device that vLLM asks for when it starts."""
    return int(shape.utilization * device_bytes)


def generating(shape: RolloutShape, stage: int, device_bytes: int | None) -> dict[str, int]:
    """Terms of an engine that is awake with its cache.

    vLLM fills its share: the cache is what weights, work and graphs leave of it, and at least what
    one sequence needs.
    """
    terms = {"weights": rollout_weights(shape, stage)}
    if shape.engine == "hf":
        # transformers grows its cache with the responses of a batch.
        rows = min(shape.sequences, 256)
        return terms | {"kv_cache": rows * least_cache(shape)}
    if not shape.on_gpu:
        cache = (shape.cache_gib or _CPU_CACHE_GIB) * 2**30
        packed = rollout_weights(replace(shape, quantization=None), stage)
        return terms | {"kv_cache": int(cache), "packed_weights": packed}
    terms |= {"work": rollout_work(shape), "graphs": graphs(shape), "workspace": WORKSPACE}
    if shape.cache_gib is not None:
        return terms | {"kv_cache": int(shape.cache_gib * 2**30)}
    rest = share(shape, device_bytes or 0) - sum(terms.values())
    return terms | {"kv_cache": max(rest, least_cache(shape))}


def needed(shape: RolloutShape, stage: int) -> int:
    """Least share of the device with which vLLM starts, in bytes: weights, work, and the cache of
    one sequence."""
    fixed = rollout_weights(shape, stage) + rollout_work(shape) + asleep(shape)
    return fixed + least_cache(shape)


def why_not(shape: RolloutShape, stage: int, device_bytes: int | None) -> str | None:
    """Why vLLM would refuse to start with its share of the device; None if it would not."""
    given = shape.cache_gib is not None
    if shape.engine != "vllm" or not shape.on_gpu or device_bytes is None or given:
        return None
    if needed(shape, stage) <= share(shape, device_bytes):
        return None
    return (
        f"rollout.gpu_memory_utilization = {shape.utilization:g} gives the engine "
        f"{share(shape, device_bytes) / 2**30:.1f} GiB of {device_bytes / 2**30:.1f}, and its "
        f"weights, work and the cache of one sequence of {shape.longest} tokens need "
        f"{needed(shape, stage) / 2**30:.1f}"
    )
