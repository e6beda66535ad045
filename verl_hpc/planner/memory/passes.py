"""Peak memory of a pass through a model, in addition to what its engine holds."""

from __future__ import annotations

from functools import lru_cache

from verl_hpc.planner.memory import sharded
from verl_hpc.planner.memory.activations import NONE, Rectangles, head, in_flight, rows_of, widths
from verl_hpc.planner.memory.by_name import by_name
from verl_hpc.planner.memory.parameters import layer_of, stage_elements, vocabulary_share
from verl_hpc.planner.shape import RoleShape

_WIDENED_ON_GPU, _WIDENED_ON_CPU = 1 << 26, 1 << 20
"""Elements of logits that are in float32 at a time: engines/shared/log_probs.py."""
_WIDE_COPIES_FORWARD, _WIDE_COPIES_BACKWARD = 2, 6
_FLOAT = 4
_ROWS_OF_LOGITS = 2
"""Megatron-core's schedule keeps the logits of a row until a forward pass has the next one's."""


def logits(shape: RoleShape, stage: int, tokens: int) -> int:
    """Bytes of a micro-batch's logits, on the last stage: a rank has its share of the
    vocabulary."""
    if not shape.is_last(stage) or not shape.has_logits:
        return 0
    return tokens * vocabulary_share(shape.arch, shape.layout.tp) * shape.item_bytes


def _widened(shape: RoleShape, stage: int, tokens: int, copies: int) -> int:
    elements = logits(shape, stage, tokens) // shape.item_bytes
    most = _WIDENED_ON_GPU if shape.on_gpu else _WIDENED_ON_CPU
    return min(elements, most) * _FLOAT * copies


def _sent(shape: RoleShape, tokens: int) -> int:
    """Hidden states of a row on a rank."""
    return rows_of(shape, tokens) * shape.arch.hidden_size * shape.item_bytes


def _gathered(shape: RoleShape, tokens: int) -> int:
    """Bytes of the buffer into which sequence parallelism gathers a layer's input; it stays
    allocated."""
    if not shape.sequence_parallel:
        return 0
    return tokens * shape.arch.hidden_size * shape.item_bytes


@lru_cache(maxsize=16384)
def forward(shape: RoleShape, stage: int, tokens: int) -> dict[str, int]:
    """Terms of a pass without gradients, while a layer or the log-probs are computed."""
    width, size = widths(shape), shape.item_bytes
    attention = 3 * _sent(shape, tokens) + tokens * size * (2 * width.query + width.projected)
    mlp = 3 * _sent(shape, tokens) + tokens * size * 3 * width.branch
    num_rows = 1 if shape.is_sharded else _ROWS_OF_LOGITS
    whole = sharded.forward(shape) | by_name(shape, tokens, False) if shape.is_sharded else {}
    return whole | {
        "work": max(attention, mlp, _widened(shape, stage, tokens, _WIDE_COPIES_FORWARD)),
        "logits": num_rows * logits(shape, stage, tokens),
        "gathered": _gathered(shape, tokens),
    }


def moments(
    shape: RoleShape,
    stage: int,
    tokens: int,
    num_micro_batches: int | None = None,
    rectangles: Rectangles = NONE,
) -> tuple[dict[str, int], dict[str, int]]:
    """Terms at two moments of forward and backward passes: at the loss, when logits and their
    gradient exist (last stage), and in the backward pass of a layer."""
    kept = in_flight(shape, stage, tokens, num_micro_batches, rectangles)
    logits_bytes = logits(shape, stage, tokens)
    ends = head(shape, tokens) if shape.is_last(stage) else 0
    at_loss = {
        "activations": kept.always + ends,
        "logits": logits_bytes,
        "logits_gradient": logits_bytes,
        "work": _widened(shape, stage, tokens, _WIDE_COPIES_BACKWARD),
    }
    in_layer = {
        "activations": kept.always,
        "recomputed": kept.again,
        "work": _backward(shape, stage, tokens),
    }
    return at_loss, in_layer


@lru_cache(maxsize=16384)
def update(
    shape: RoleShape,
    stage: int,
    tokens: int,
    num_micro_batches: int | None = None,
    rectangles: Rectangles = NONE,
) -> dict[str, int]:
    """Terms of forward and backward passes, at the fuller of the `moments`."""
    both = moments(shape, stage, tokens, num_micro_batches, rectangles)
    whole = sharded.update(shape) | by_name(shape, tokens, True) if shape.is_sharded else {}
    return (
        whole
        | max(both, key=lambda terms: sum(terms.values()))
        | {
            "placeholders": _placeholders(shape),
            "gathered": _gathered(shape, tokens),
            "sent": _between_stages(shape, stage, tokens, num_micro_batches),
        }
    )


def _backward(shape: RoleShape, stage: int, tokens: int) -> int:
    """Gradients of a layer's activations, and of the largest weight before it is added up."""
    size = shape.item_bytes
    branch = max(widths(shape, kind).branch for kind in shape.arch.layer_kinds)
    gradients = tokens * size * 3 * branch + 3 * _sent(shape, tokens)
    gradients += _gathered(shape, tokens)
    return gradients + stage_elements(shape, stage).largest * size


def _placeholders(shape: RoleShape) -> int:
    """Bytes of what Transformer Engine's layers return as gradients of weights, having added them
    to the others already: one tensor of each shape."""
    fuses = shape.backend == "transformer_engine" and shape.adapters is None
    layers = (layer_of(shape, kind) for kind in shape.arch.layer_kinds)
    sizes = {p.num_elements for layer in layers for p in layer if p.is_linear_weight}
    return fuses * sum(sizes) * shape.item_bytes


def _between_stages(shape: RoleShape, stage: int, tokens: int, num: int | None) -> int:
    """Bytes of outputs that a stage has sent on and keeps for its backward passes, and of what it
    receives."""
    layout = shape.layout
    if layout.pp == 1:
        return 0
    held = layout.pp - stage if layout.vpp == 1 else 2 * (layout.pp - stage) + layout.pp
    held = held if num is None else min(held, num * layout.vpp)
    outputs = 0 if shape.is_last(stage) and layout.vpp == 1 else held
    return (outputs + 2) * _sent(shape, tokens)
