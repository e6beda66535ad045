"""Operations that the host dispatches for a micro-batch: however few its tokens are, the device
waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Passage(NamedTuple):
    """Operations in a forward pass, and in the forward and backward pass of an update: kernels,
    collectives and allocations, without views."""

    forward: int
    update: int


PER_LAYER: Mapping[str, Passage] = {
    "dense": Passage(25, 60),
    "fp8": Passage(31, 85),
    "experts": Passage(62, 121),
}
"""Operations of one layer for one micro-batch, with tensor and sequence parallelism and Transformer
Engine's layers; tests/dry_gpu/test_operations.py counts them on a GPU that is not there."""
OUTSIDE = Passage(115, 219)
"""Operations outside the layers, of 4,096 tokens and the logits of Qwen3-8B on two ranks; counted
there, too."""

MOST_SHARE = 0.5
"""Largest share of the device's time for which the host may dispatch in a run that is not bound by
launches: a core that is half as fast, or interrupted, still keeps the device busy."""


def of_a_layer(fp8: bool, has_experts: bool) -> Passage:
    """Operations of one layer for one micro-batch."""
    dense, quantised = PER_LAYER["dense"], PER_LAYER["fp8"]
    base = PER_LAYER["experts" if has_experts else "dense"]
    if not fp8:
        return base
    more = (base.forward - dense.forward, base.update - dense.update)
    return Passage(quantised.forward + more[0], quantised.update + more[1])
