"""What a rank has of a model whose parameters fully_shard divides over all ranks.

Its rows of every parameter are padded to those of the first rank, and are their own master weights
where it is trained. In a pass it has whole parameters besides: all that is in no layer, and two
layers, of which the next is gathered while one computes.
"""

from __future__ import annotations

from functools import lru_cache

from verl_hpc.layout.box import row_major_strides
from verl_hpc.layout.fsdp import rows_of
from verl_hpc.layout.heads import model_tensors
from verl_hpc.planner.memory.shape import RoleShape

_FLOAT = 4
_LAYERS_GATHERED = 2


class Shards:
    """Of one model, as a `Buffer` of the ledger."""

    def __init__(self, shape: RoleShape) -> None:
        self.num_replicas = shape.layout.dp
        self._sizes = [
            (spec.shape[0], row_major_strides(spec.shape)[0])
            for spec in model_tensors(shape.arch, shape.head).values()
        ]

    @property
    def num_elements(self) -> int:
        """Of a rank's rows, with padding."""
        return sum(len(rows_of(rows, self.num_replicas)[0]) * size for rows, size in self._sizes)

    def owned(self, replica: int) -> list[int]:
        """Elements of each of a rank's shards that are not empty."""
        found = (len(rows_of(r, self.num_replicas)[replica]) * size for r, size in self._sizes)
        return [size for size in found if size]


@lru_cache(maxsize=512)
def shards(shape: RoleShape) -> Shards:
    """Made once."""
    return Shards(shape)


@lru_cache(maxsize=512)
def _whole_elements(shape: RoleShape) -> tuple[int, int]:
    """Of one layer, and of all that is in none."""
    layer = outside = 0
    for name, spec in model_tensors(shape.arch, shape.head, "uint8").items():
        if name.startswith("model.layers.0."):
            layer += spec.num_bytes
        elif not name.startswith("model.layers."):
            outside += spec.num_bytes
    return layer, outside


def forward(shape: RoleShape) -> dict[str, int]:
    """Terms of a pass without gradients, besides those of any engine."""
    layer, outside = _whole_elements(shape)
    at_once = min(_LAYERS_GATHERED, shape.arch.num_layers)
    if not shape.setting("reshard_after_forward"):
        at_once = shape.arch.num_layers
    return {"whole": (outside + at_once * layer) * shape.item_bytes}


def update(shape: RoleShape) -> dict[str, int]:
    """Terms of an update: whole parameters, the gradient of the largest group of them with the
    copy that is summed over ranks, and this rank's rows of all gradients."""
    layer, outside = _whole_elements(shape)
    summed = _FLOAT if shape.setting("reduce_dtype") == "float32" else 2
    return {
        **forward(shape),
        "whole_gradients": max(layer, outside) * (shape.item_bytes + summed),
        "gradient_shards": shards(shape).num_elements * _FLOAT,
    }
