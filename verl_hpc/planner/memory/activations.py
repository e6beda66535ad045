"""Activations that a micro-batch keeps for its backward pass, per layer and per model chunk.

After Korthikanti et al., "Reducing activation recomputation in large transformer models" (arXiv
2205.05198, section 4), for what is computed here: packed rows of tokens, SwiGLU, grouped key/value
heads, attention that keeps no scores, no dropout. With h the hidden size, q and k the widths of a
rank's query and key heads, f of its feed-forward branch, s the tokens of a row that a rank has (all
T of them, or T / tp with sequence parallelism), a layer of Transformer Engine keeps, in elements,

    4 s h                norms: their inputs and outputs
    T (2 q + k)          queries and keys after the rotary embedding, and the attention's output
    T (q + 2 k)          the fused projection, of which the values are a part
    T 3 f                gate and up projection, and their product

Multi-latent attention keeps the latent vectors before and behind their norms, keys as large as
queries, and values of their own width. Shared experts are one more feed-forward branch.

A layer of PyTorch's keeps more: norms compute in float32 and keep two copies of their input in it,
the rotary embedding its angles, and SwiGLU five branches instead of three, seven where it is
clamped. Attention with sinks computes on copies in which each head has an element more (on GPUs
8); with windows, keys and values are copied twice, and a query has a mask of two windows. This
equals what autograd saves (tests/mpi/test_ledger_activations.py counts it); Transformer Engine's is
a formula.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from verl_hpc.planner.memory.pipeline import most_in_flight
from verl_hpc.planner.shape import RoleShape

_FLOAT = 4


class Rectangles(NamedTuple):
    """Right-padded rectangles on which PyTorch's attention computes a row."""

    tokens: int
    """Tokens, padding included; 0 where all sequences of the row are equally long."""
    are_several: bool = False
    """Whether a row is split into several rectangles, because one would be more than half padding;
    the packed input is then not kept."""
    masks: int = 0
    """Elements of the attention masks that each layer keeps where context-parallel ranks share a
    row; such a row has no rectangles."""


NONE = Rectangles(0)


def split_rectangles(squares: int, num_ranks: int) -> Rectangles:
    """Masks of a row that context-parallel ranks share, from the sum of its sequences' squared
    lengths: with n ranks a sequence has 2 n pieces, and a rank's two attend to 2 n + 1 in all."""
    return Rectangles(0, masks=squares * (2 * num_ranks + 1) // (4 * num_ranks**2))


class Widths(NamedTuple):
    """Elements per token on one rank."""

    hidden: int
    query: int
    key: int
    """Key heads; value heads are as many."""
    value: int
    """Heads of values, which may have another size than those of keys."""
    output: int
    """Query heads of values: what attention gives."""
    projected: int
    """Output of the fused projection of queries, keys and values."""
    branch: int
    """Feed-forward branch; in a mixture summed over a token's experts, assuming balanced
    routing."""
    shared: int
    """Feed-forward branch of experts that all tokens pass through, besides the routed ones."""
    heads: int
    latent: tuple[int, ...]
    """Latent vectors of multi-latent attention, which every rank has whole."""
    rotated: int
    """Elements of a head that are rotated."""


@lru_cache(maxsize=4096)
def widths(shape: RoleShape, kind: int | None = None) -> Widths:
    """Widths of a layer of a kind (`layer`). With fewer key/value heads than ranks, Megatron-core
    gathers the whole projection and keeps a part of it."""
    arch, tp = shape.arch, shape.layout.tp
    key_heads = max(arch.num_kv_heads // tp, 1)
    projected = arch.q_size + 2 * arch.kv_size
    query = arch.q_size // tp
    gathers = arch.num_kv_heads < tp
    branch = arch.ffn_size // tp
    if _has_experts(shape, kind):
        # With balanced routing a rank's experts receive as many tokens as it sends away.
        branch *= arch.experts_per_token
    elif arch.num_dense_layers:
        branch = arch.dense_ffn_size // tp
    latent = arch.latent
    if latent is not None:  # neither keys nor values are parts of what is projected
        projected = 0
    return Widths(
        arch.hidden_size,
        query,
        key_heads * arch.head_size,
        key_heads * latent.value_size if latent else key_heads * arch.head_size,
        arch.o_size // tp,
        projected if gathers else projected // tp,
        branch,
        arch.shared_ffn_size // tp if _has_experts(shape, kind) else 0,
        arch.num_heads // tp,
        tuple(filter(None, (latent.q_rank, latent.kv_rank))) if latent else (),
        arch.rotated_size,
    )


def _has_experts(shape: RoleShape, kind: int | None) -> bool:
    layer = shape.arch.num_layers - 1 if kind is None else kind
    return shape.arch.is_moe and not shape.arch.is_dense(layer)


class Layer(NamedTuple):
    """Bytes of one layer and one micro-batch, by what a recomputation frees."""

    norms: int
    attention: int
    core: int
    """Part of the attention that recompute_modules: [core_attn] frees."""
    mlp: int
    """Part that recompute_modules: [mlp] frees."""
    entrance: int
    """The layer's input alone."""

    @property
    def whole(self) -> int:
        return self.norms + self.attention + self.core + self.mlp


def rows_of(shape: RoleShape, tokens: int) -> int:
    """Tokens of a row that a rank holds between its tensor-parallel regions."""
    return -(-tokens // shape.layout.tp) if shape.sequence_parallel else tokens


@lru_cache(maxsize=16384)
def layer(
    shape: RoleShape, tokens: int, rectangles: Rectangles = NONE, kind: int | None = None
) -> Layer:
    """Activations that one layer keeps.

    Args:
        tokens: of the micro-batch's row on a rank.
        rectangles: of the row.
        kind: the layer, or one like it; None is the last.
    """
    own = rows_of(shape, tokens)
    size, width = shape.item_bytes, widths(shape, kind)
    entrance = own * width.hidden * size
    if shape.backend == "transformer_engine":
        kept = _transformer_engine(shape, tokens, own, width, entrance)
    else:
        kept = _local(shape, tokens, rectangles, own, width, entrance)
    if not _has_experts(shape, kind):
        return kept
    sent = _sent_to_experts(shape, own, width)
    if shape.backend == "local":  # the product weighted by the router is kept as well
        sent += tokens * width.branch * size
    return kept._replace(mlp=kept.mlp + sent)


def _local(
    shape: RoleShape, tokens: int, rectangles: Rectangles, own: int, width: Widths, entrance: int
) -> Layer:
    arch, size = shape.arch, shape.item_bytes
    norms = 2 * own * (width.hidden * (2 * _FLOAT + size) + _FLOAT)
    angles = 4 * width.rotated
    outside = tokens * size * (angles + width.output)
    if width.latent:
        outside += own * sum(n * (2 * _FLOAT + size) + _FLOAT for n in width.latent)
        outside += own * size * width.rotated
    inside = tokens * size * (width.query + width.key + (width.projected or width.value))
    # The fused kernel of CPUs takes copies of values as long as keys, and its output is as long.
    pads = width.value < width.key and not shape.on_gpu
    value, output = (width.key, width.query) if pads else (width.value, width.output)
    if pads and not rectangles.tokens:
        inside += tokens * size * (value - width.value + output)
    if rectangles.are_several or shape.layout.cp > 1:
        # In float32 the norms of queries and keys keep their input.
        kept = shape.arch.qk_norm and size == _FLOAT
        inside = tokens * size * width.projected * kept
    if shape.layout.cp > 1:
        # Keys and values of the whole row are gathered, and the rank's own are freed.
        gathered = (width.key + width.value) * shape.layout.cp
        inside += tokens * size * (width.query + gathered)
        seen = tokens * (2 * shape.layout.cp + 1) // 2  # by a rank's two pieces
        inside += pads * seen * size * value
    sums = (rectangles.tokens or tokens) * width.heads * _FLOAT
    if shape.arch.qk_norm:
        outside += tokens * _FLOAT * (width.query + width.key + width.heads)
        outside += tokens * _FLOAT * (width.query + (width.key if size < _FLOAT else 0))
    # Copies of queries, keys, values and outputs in rectangles, in addition to those of the row.
    copied = width.query + output + width.key + value
    core = rectangles.tokens * copied * size + sums
    if arch.sinks:
        inside, windowed = 0, 1 - arch.full_share
        copied += int(windowed * (width.key + value))
        copied += copied * (8 if shape.on_gpu else 1) // arch.head_size
        masks = int(windowed * 2 * arch.window)
        core = ((rectangles.tokens or tokens) * copied + tokens * masks) * size + sums
    if shape.layout.cp > 1:
        core += (tokens * output + rectangles.masks) * size
    branches = 7 if arch.clamped_swiglu else 5
    mlp = branches * tokens * (width.branch + width.shared) * size
    return Layer(norms, outside + inside, core, mlp, entrance)


def _transformer_engine(
    shape: RoleShape, tokens: int, own: int, width: Widths, entrance: int
) -> Layer:
    size = shape.item_bytes
    # Linear layers that compute in FP8 keep their inputs in FP8.
    linear = 1 if shape.fp8 is not None else size
    norms = own * (3 * width.hidden * size + width.hidden * linear + 2 * _FLOAT)
    norms -= own * width.hidden * (size - linear)
    attended = width.query + width.key + width.output + (width.projected or width.value)
    attention = tokens * size * attended + own * size * 2 * sum(width.latent)
    if shape.fp8 is not None:
        attention += tokens * width.query
    if shape.arch.qk_norm:
        attention += tokens * (size * (width.query + width.key) + _FLOAT * 2 * width.heads)
    sums = tokens * width.heads * _FLOAT
    mlp = tokens * (width.branch + width.shared) * (2 * size + linear)
    return Layer(norms, attention, sums, mlp, entrance)


def _sent_to_experts(shape: RoleShape, own: int, width: Widths) -> int:
    """Copies of tokens at a rank's experts, one for each that a token passes through and for each
    rank that shares an expert; and how the router chose."""
    arch = shape.arch
    copies = arch.experts_per_token * shape.layout.etp * width.hidden * shape.item_bytes
    routed = 24 * arch.experts_per_token + arch.num_experts + 32
    return own * (copies + routed)


class Kept(NamedTuple):
    """Bytes that a micro-batch leaves in one model chunk."""

    always: int
    """Kept from the forward pass to the backward pass."""
    again: int
    """Added while a part of the chunk is recomputed."""
    on_host: int = 0
    """Kept in host memory from the forward pass to the backward pass."""


@lru_cache(maxsize=16384)
def chunk(
    shape: RoleShape, kinds: tuple[int, ...], tokens: int, rectangles: Rectangles = NONE
) -> Kept:
    """Activations that a chunk of layers of these kinds keeps under the `parallel.recompute`
    settings. What is recomputed at a time is taken to be of the fullest kind."""
    layers = [layer(shape, tokens, rectangles, kind) for kind in kinds]
    num_layers, recompute = len(layers), shape.recompute
    if recompute == "selective":
        each = [_selective(shape, one) for one in layers]
        return Kept(sum(one.always for one in each), max((one.again for one in each), default=0))
    if recompute != "full" or not num_layers:
        return Kept(sum(one.whole for one in layers), 0)
    one = max(layers, key=lambda one: one.whole)
    count = shape.recompute_num_layers or 1
    angles = tokens * widths(shape).rotated * _FLOAT
    if shape.recompute_method == "block":
        some = min(count, num_layers)
        rest = sum(one.whole for one in layers[some:])
        again = max(one.whole - rest, 0)
    else:
        some, rest = -(-num_layers // count), 0
        again = min(count, num_layers) * one.whole
    if shape.offload_activations:
        # Recomputed layers have their input on the device, counted among their norms' inputs; that
        # of the layers before them is on its way.
        ahead = one.entrance if some > 1 else 0
        return Kept(rest + angles, again + ahead, some * one.entrance)
    return Kept(some * one.entrance + rest + angles, again)


def _selective(shape: RoleShape, one: Layer) -> Kept:
    modules = shape.recompute_modules or ("mlp",)
    freed = 0
    if "mlp" in modules:
        freed += one.mlp
        if shape.backend == "transformer_engine":
            # The norm is part of the first linear layer.
            freed += one.entrance
    if "core_attn" in modules:
        freed += one.core
    again = max(one.mlp if "mlp" in modules else 0, one.core if "core_attn" in modules else 0)
    return Kept(one.whole - freed, again)


@lru_cache(maxsize=16384)
def head(shape: RoleShape, tokens: int) -> int:
    """Bytes kept for the final norm and the output layer's input, on the last stage, without
    logits."""
    own, size, width = rows_of(shape, tokens), shape.item_bytes, widths(shape)
    if shape.backend == "local":
        return own * (width.hidden * (2 * _FLOAT + size) + _FLOAT)
    return own * (2 * width.hidden * size + _FLOAT)


@lru_cache(maxsize=16384)
def in_flight(
    shape: RoleShape,
    stage: int,
    tokens: int,
    num_micro_batches: int | None = None,
    rectangles: Rectangles = NONE,
) -> Kept:
    """Peak bytes that the layers of one stage keep, without head and logits.

    Args:
        tokens: of each micro-batch.
        num_micro_batches: of an update; None is as many as the pipeline can hold.
        rectangles: as in `layer`.
    """
    layout = shape.layout
    chunks = [chunk(shape, shape.kinds(stage, c), tokens, rectangles) for c in range(layout.vpp)]

    def most(kept: tuple[int, ...]) -> int:
        return most_in_flight(layout.pp, layout.vpp, stage, kept, num_micro_batches)

    return Kept(
        most(tuple(one.always for one in chunks)),
        max(one.again for one in chunks),
        most(tuple(one.on_host for one in chunks)),
    )
