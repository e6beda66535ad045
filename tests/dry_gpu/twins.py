"""Real values of small device tensors that came from the host.

Lengths, positions, offsets and counts decide shapes and what the host reads later. Where everything
that goes into an operation is known, it is computed on the CPU as well, and the result is the twin
of the fake one. Values of weights and activations are not known, and nothing is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_map

MOST = 1 << 20
"""Elements of the largest tensor with a twin."""
_FROM_NOTHING = {
    "aten::arange",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::scalar_tensor",
    "aten::linspace",
}
_FILLED = {"aten::zero_", "aten::fill_", "aten::copy_"}


def twin_of(tensor: Any) -> torch.Tensor | None:
    """The values of a tensor of the device; None if they are not known."""
    twin = getattr(tensor, "twin", None)
    return None if twin is None or getattr(twin.untyped_storage(), "unknown", False) else twin


def know(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Say what a fake tensor holds."""
    assert tensor.shape == values.shape, (tensor.shape, values.shape)
    tensor.twin = values


def computed(func: Any, args: Any, kwargs: Any, flat: Sequence[Any]) -> Any:
    """The result on the CPU; None if something that goes in is not known."""
    name = func._schema.name
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    if not tensors and (name not in _FROM_NOTHING or _size_of(args) > MOST):
        return None
    if name in _FILLED:
        _have_memory(tensors[0])
    if any(x.numel() > MOST or (isinstance(x, FakeTensor) and twin_of(x) is None) for x in tensors):
        return None
    real_args, real_kwargs = tree_map(_real, (args, kwargs))
    try:
        return func(*real_args, **real_kwargs)
    except RuntimeError:  # a view of more than the twin has
        return None


def keep(found: Any, values: Any) -> None:
    """Give the tensors that an operation made their twins."""
    for fake, value in zip(tree_flatten(found)[0], tree_flatten(values)[0], strict=False):
        if isinstance(fake, FakeTensor) and fake.shape == value.shape:
            know(fake, value)


def forget(flat: Sequence[Any]) -> None:
    """What was written from the unknown is not known any more, in any view of it."""
    for x in flat:
        twin = getattr(x, "twin", None)
        if twin is not None:
            twin.untyped_storage().unknown = True


def _have_memory(tensor: torch.Tensor) -> None:
    """Whatever a small tensor was, it is known once it is filled."""
    if twin_of(tensor) is None and tensor.numel() <= MOST:
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        if whole and tensor.is_contiguous():
            know(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))


def _size_of(args: Any) -> int:
    size = args[0] if args and isinstance(args[0], (list, tuple)) else ()
    return math.prod(size)


def _real(x: Any) -> Any:
    if isinstance(x, FakeTensor):
        return x.twin
    return torch.device("cpu") if isinstance(x, torch.device) else x
