"""Kernels of CPUs whose result for a token does not depend on what else is in its batch.

With them vLLM's log-probs are those of training to the last bit: both multiply by oneDNN, whose
products of two rows or more are alike for every number of rows, attend by vLLM's kernel, and take
norms, rotations and activations by PyTorch's formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import vllm._custom_ops as ops
from torch.nn.functional import rms_norm
from vllm import ir

from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture

PROVIDER = "verl_hpc_invariant"
_BLOCK = 32
"""Tokens of a block of keys and values, as in the engine's cache."""
_CHECKED_ROWS = (2, 3, 5, 8, 17, 64, 200)


def options() -> dict[str, object]:
    """Return options of an engine, over those of `vllm_cpu`."""
    norms = {name: [PROVIDER, "native"] for name in ("rms_norm", "fused_add_rms_norm")}
    return {"ir_op_priority": norms, "compilation_config": {"custom_ops": ["none"]}}


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scale: float | None,
    queries: Sequence[int] | None = None,
) -> torch.Tensor:
    """Attend within sequences that follow each other (`engines.shared.invariant.Attend`).

    Keys and values are laid out as in the cache of an engine, in blocks of their own for each
    sequence.

    Args:
        queries: how many of each sequence's last tokens attend; None if all of them do.
    """
    _, num_heads, size = query.shape
    num_key_heads = key.shape[1]
    isa = "vec16" if size % 32 else "vec"
    blocks = [-(-length // _BLOCK) for length in lengths]
    cache = query.new_zeros(sum(blocks), num_key_heads, 2 * _BLOCK, size)
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    slots, first = [], 0
    for row, count, length in zip(table, blocks, lengths, strict=True):
        row[:count] = torch.arange(first, first + count)
        slots.append(torch.arange(length) + first * _BLOCK)
        first += count
    keys, values = cache.chunk(2, dim=2)
    given = key.contiguous(), value.contiguous()
    ops.cpu_attn_reshape_and_cache(*given, keys, values, torch.cat(slots), isa)
    starts = torch.tensor([0, *(lengths if queries is None else queries)])
    starts = starts.cumsum(0, dtype=torch.int32)
    ends = torch.tensor(lengths, dtype=torch.int32)
    schedule = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(lengths),
        num_heads=num_heads,
        num_kv_heads=num_key_heads,
        head_dim=size,
        seq_lens=ends,
        dtype=query.dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    ops.cpu_attention_with_kv_cache(
        query=query.contiguous(),
        key_cache=keys,
        value_cache=values,
        output=output,
        query_start_loc=starts,
        seq_lens=ends,
        scale=size**-0.5 if scale is None else scale,
        causal=True,
        alibi_slopes=None,
        sliding_window=-1,
        block_table=table,
        softcap=0.0,
        scheduler_metadata=schedule,
        s_aux=None,
    )
    return output


def check(model: torch.nn.Module, arch: Architecture, tensor_parallel: int, longest: int) -> None:
    """Check that this machine's kernels do not depend on the batch.

    Args:
        model: vLLM's model, whose linear layers are tried by their sizes.
        arch: sizes of the heads.
        tensor_parallel: ranks that share the heads.
        longest: tokens of the longest sequence.

    Raises:
        ConfigError: a product or attention depends on what else is in its batch.
    """
    generator = torch.Generator().manual_seed(0)
    layers = [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]
    for outputs, inputs in {tuple(layer.weight.shape) for layer in layers}:
        _check_product(outputs, inputs, generator)
    heads = arch.num_heads // tensor_parallel, max(arch.num_kv_heads // tensor_parallel, 1)
    _check_attention(*heads, arch.head_size, longest, generator)


def _check_product(outputs: int, inputs: int, generator: torch.Generator) -> None:
    weight = torch.randn(outputs, inputs, generator=generator)
    rows = torch.randn(_CHECKED_ROWS[-1], inputs, generator=generator)
    # The trainer's call, against the engine's.
    whole = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    handler = ops.create_onednn_mm(weight.t(), len(_CHECKED_ROWS))
    for count in _CHECKED_ROWS:
        if not torch.equal(ops.onednn_mm(handler, rows[-count:], None), whole[-count:]):
            raise ConfigError(
                f"rollout.batch_invariant: products with a weight of {outputs} x {inputs} depend "
                f"on the number of rows on this machine, here {count}; leave it out"
            )


def _check_attention(
    heads: int, key_heads: int, size: int, longest: int, generator: torch.Generator
) -> None:
    query = torch.randn(longest, heads, size, generator=generator)
    key, value = torch.randn(2, longest, key_heads, size, generator=generator)
    whole, length, shortest = attend(query, key, value, [longest], None), longest, 0
    while length:
        own = query[:length], key[:length], value[:length]
        last = attend(own[0][-1:], *own[1:], [length], None, [1])
        same = torch.equal(last, whole[length - 1 : length])
        if not (same and torch.equal(attend(*own, [length], None), whole[:length])):
            shortest = length
        length = length * 3 // 4
    if shortest:
        raise ConfigError(
            f"rollout.batch_invariant: attention of {heads} heads of {size} elements, with "
            f"{key_heads} of keys, depends on the batch on this machine, at {shortest} tokens for "
            f"one; shorten rollout.max_prompt_tokens + rollout.max_response_tokens = {longest}, or "
            "leave it out here"
        )


@ir.ops.rms_norm.register_impl(PROVIDER)
def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    assert variance_size is None, "no layer table has such norms"
    return rms_norm(x, x.shape[-1:], weight, epsilon)


@ir.ops.fused_add_rms_norm.register_impl(PROVIDER, inplace=True)
def _fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert variance_size is None, "no layer table has such norms"
    x_residual += x
    return rms_norm(x_residual, x.shape[-1:], weight, epsilon), x_residual
