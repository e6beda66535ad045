"""The memory of a rank for a model whose parameters fully_shard divides over all ranks.

Its rows of every parameter are padded to those of the first rank, and are their own master weights
where the model is trained. A pass adds whole parameters: everything outside layers, and layers,
with the buffers that they are gathered into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from verl_hpc.layout.adapters import adapter_tensors
from verl_hpc.layout.box import row_major_strides
from verl_hpc.layout.fsdp import rows_of
from verl_hpc.layout.heads import HEAD_TENSORS, model_tensors
from verl_hpc.layout.published import LAYER
from verl_hpc.layout.shard_map import TensorSpec
from verl_hpc.planner.memory.parameters import largest_layer
from verl_hpc.planner.shape import RoleShape

_FLOAT = 4
_EMBEDDING = "model.embed_tokens.weight"


class Shards:
    """Shards of parameters, with the interface of `Buffer`."""

    def __init__(self, shape: RoleShape, tensors: Mapping[str, TensorSpec]) -> None:
        self.num_replicas = shape.layout.num_shards
        self._sizes = [
            (spec.shape[0], row_major_strides(spec.shape)[0]) for spec in tensors.values()
        ]

    @property
    def num_elements(self) -> int:
        """Elements of a rank's rows, with padding."""
        return sum(len(rows_of(rows, self.num_replicas)[0]) * size for rows, size in self._sizes)

    def owned(self, replica: int) -> list[int]:
        """Elements of each of a rank's shards that are not empty."""
        sizes = (len(rows_of(r, self.num_replicas)[replica]) * size for r, size in self._sizes)
        return [size for size in sizes if size]


@lru_cache(maxsize=512)
def trained_shards(shape: RoleShape) -> Shards:
    """Shards of the parameters that are trained: all, or adapters and a one-number head."""
    tensors = model_tensors(shape.arch, shape.head)
    if shape.adapters is not None:
        heads = {name: spec for name, spec in tensors.items() if name in HEAD_TENSORS.values()}
        tensors = adapter_tensors(shape.arch, shape.adapters) | heads
    return Shards(shape, tensors)


@lru_cache(maxsize=512)
def frozen_shards(shape: RoleShape) -> Shards:
    """Shards of the parameters that are not trained, of a model of which some are."""
    tensors = model_tensors(shape.arch, shape.head)
    if shape.trainable:
        tensors = {n: spec for n, spec in tensors.items() if n not in HEAD_TENSORS.values()}
    return Shards(shape, tensors)


class _Group(NamedTuple):
    """Elements of parameters gathered together."""

    exact: int
    padded: int
    """Elements with all ranks padded to as many rows, as they are communicated."""


def _group(shape: RoleShape, tensors: Iterable[TensorSpec]) -> _Group:
    exact = padded = 0
    for spec in tensors:
        rows, size = spec.shape[0], row_major_strides(spec.shape)[0]
        exact += rows * size
        padded += len(rows_of(rows, shape.layout.num_shards)[0]) * shape.layout.num_shards * size
    return _Group(exact, padded)


@lru_cache(maxsize=512)
def _groups(shape: RoleShape) -> tuple[_Group, _Group, int]:
    """Return the group of the largest layer, the group of everything outside layers, and how many
    elements of the latter have their gradients first."""
    tensors = model_tensors(shape.arch, shape.head, "uint8")
    if shape.adapters is not None:
        tensors |= adapter_tensors(shape.arch, shape.adapters, "uint8")
    layer = largest_layer(tensors).values()
    outside = {name: spec for name, spec in tensors.items() if not LAYER.match(name)}
    begins_only = shape.head in HEAD_TENSORS or not shape.arch.tied_embeddings
    early = [spec for n, spec in outside.items() if not (begins_only and n == _EMBEDDING)]
    both = _group(shape, layer), _group(shape, outside.values())
    return *both, _group(shape, early).exact


def forward(shape: RoleShape) -> dict[str, int]:
    """Terms of a pass without gradients that other engines do not have.

    A group of parameters is gathered into one buffer and copied out of it, while the buffer of the
    group ahead of it is still there; one rank's are copied alone.
    """
    layer, outside, _ = _groups(shape)
    num_layers, kept = shape.arch.num_layers, _kept(shape)
    if shape.layout.num_shards == 1:
        elements = outside.padded + (kept + 1) * layer.padded
    else:
        first = 2 * outside.padded + 2 * layer.padded
        later = outside.padded + (kept + 3) * layer.padded
        elements = max(first, later if num_layers > 1 else 0)
    return {"whole": elements * shape.item_bytes}


def update(shape: RoleShape) -> dict[str, int]:
    """Terms of a backward pass, which needs more than the forward pass: whole parameters; gradients
    of one group with the copy that is summed over ranks, and those computed before it; and this
    rank's rows of all gradients."""
    layer, outside, early = _groups(shape)
    # The current layer is freed before the next is copied out of its buffer.
    layers = _kept(shape) + 1
    if shape.reshard_after_forward and shape.layout.num_shards > 1:
        layers = 2
    item, summed = shape.item_bytes, _FLOAT if shape.reduce_dtype == "float32" else 2
    of_layer = (early + layer.exact) * item + layer.padded * summed
    return {
        "whole": (outside.padded + layers * layer.padded) * item,
        "whole_gradients": max(of_layer, outside.exact * item + outside.padded * summed),
        "gradient_shards": trained_shards(shape).num_elements * _FLOAT,
    }


def _kept(shape: RoleShape) -> int:
    """Layers that stay whole when the last one is gathered, in a forward pass."""
    return 0 if shape.reshard_after_forward else shape.arch.num_layers - 1
