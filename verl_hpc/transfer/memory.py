"""The tensors of one rank in a transfer, and the windows of them that fragments lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.layout.box import View
from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.moves import Receive, Send


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

    def written(self, item: Receive) -> torch.Tensor:
        """The first window that is received into."""
        return window(self.target, item.targets[0], item.fragment)

    def fill(self, views: Sequence[View], fragment: Fragment, data: torch.Tensor) -> None:
        """Copy `data`, of the fragment's shape, to several places of target memory."""
        for view in views:
            window(self.target, view, fragment).copy_(data)

    def in_place(self, found: torch.Tensor, fragment: Fragment) -> bool:
        """Whether a window's bytes lie in memory as they travel."""
        return found.dtype == self.dtype(fragment) and found.is_contiguous()


def window(tensors: Mapping[str, torch.Tensor], view: View, fragment: Fragment) -> torch.Tensor:
    """The part of a rank's tensor that a fragment lies in, of the fragment's shape."""
    tensor = tensors[view.name]
    assert tensor.is_contiguous(), f"{view.name} is not contiguous"
    first = tensor.storage_offset() + view.offset
    return tensor.as_strided(fragment.box.shape, view.strides, first)
