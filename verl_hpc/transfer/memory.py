"""The tensors of one rank in a transfer, and the windows of them that fragments lie in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.layout.box import View
from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Send
from verl_hpc.layout.planner import HOST_PIECE_BYTES
from verl_hpc.layout.shard_map import Region

PIECE_BYTES = HOST_PIECE_BYTES


@dataclass(frozen=True)
class Memory:
    """Tensors by local name, contiguous, and the element types that travel."""

    source: Mapping[str, torch.Tensor]
    target: Mapping[str, torch.Tensor]
    dtypes: Mapping[str, torch.dtype] | torch.dtype

    @property
    def device(self) -> torch.device:
        anything = next(iter([*self.target.values(), *self.source.values()]), None)
        return torch.device("cpu") if anything is None else anything.device

    def dtype(self, fragment: Fragment) -> torch.dtype:
        if isinstance(self.dtypes, torch.dtype):
            return self.dtypes
        return self.dtypes[fragment.tensor]

    def read(self, item: Send) -> torch.Tensor:
        """The window that is sent: of source memory, or of target memory if it is passed on."""
        tensors = self.target if item.relay else self.source
        return window(tensors, item.view, item.fragment)

    def windows(self, views: Sequence[View], fragment: Fragment) -> list[torch.Tensor]:
        """Several places of target memory, of the fragment's shape."""
        return [window(self.target, view, fragment) for view in views]

    def is_that_of(self, other: Memory) -> bool:
        """Whether all windows lie where those of `other` do."""
        for mine, theirs in ((self.source, other.source), (self.target, other.target)):
            if mine.keys() != theirs.keys():
                return False
            for name, tensor in mine.items():
                if not tensor.is_set_to(theirs[name]):
                    return False
        return self.dtypes == other.dtypes

    def in_place(self, found: torch.Tensor, fragment: Fragment) -> bool:
        """Whether a window's bytes lie in memory as they travel."""
        return found.dtype == self.dtype(fragment) and found.is_contiguous()


def window(
    tensors: Mapping[str, torch.Tensor], view: View, part: Fragment | Region
) -> torch.Tensor:
    """The piece of a rank's tensor that a fragment or a region lies in, of its shape; a fragment's
    dimensions are in the order in which it travels."""
    tensor = tensors[view.name]
    assert tensor.is_contiguous(), f"{view.name} is not contiguous"
    first = tensor.storage_offset() + view.offset
    found = tensor.as_strided(part.box.shape, view.strides, first)
    return found.permute(part.order) if isinstance(part, Fragment) else found


def in_pieces(*windows: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Cut windows of one shape into matching pieces of rows that fit a core's cache.

    Memory of a device is one piece, and so is a number.
    """
    first = windows[0]
    if first.dim() == 0 or first.device.type != "cpu":
        return iter([windows])
    rows = max(PIECE_BYTES * len(first) // first.nbytes, 1)
    return zip(*(each.split(rows) for each in windows), strict=True)
