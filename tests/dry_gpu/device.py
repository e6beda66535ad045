"""A GPU that is not there: what torch does on "cuda" is done on fake tensors, and watched.

Operations with a tensor of the device run under FakeTensorMode: devices, element types and shapes
are torch's own, nothing is computed. All others run as they are. What the host reads is a twin's
value (`twins`), else 1 of floating types and 0 of others; every read is noted with the function
that asked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.dry_gpu import twins
from tests.dry_gpu.operations import Operations
from tests.dry_gpu.places import asked_by
from tests.dry_gpu.storages import Storages
from tests.dry_gpu.streams import Order
from tests.dry_gpu.world import FakeWorld

TOTAL_BYTES = 84_944_000_000
"""Memory of an H100 SXM: 79.11 GiB."""
_STAGED_BYTES = 1 << 16
"""The driver copies so much pageable memory at once; for more it may wait for the device."""


class Gpu:
    """The device of one rank of a world, and what was asked of it.

    Args:
        rank: this process's.
        size: ranks of the world.
        per_node: ranks of a node.
    """

    def __init__(self, rank: int, size: int, per_node: int = 8) -> None:
        self.rank, self.size, self.per_node = rank, size, min(per_node, size)
        self.order = Order()
        self.memory = Storages(self.order)
        self.world = FakeWorld(rank, size, self.order)
        self.waits: Counter[str] = Counter()
        """How often the host has waited for the device, by what it did and who asked."""
        self.operations = Operations()
        self.page_locked = 0
        """Bytes of page-locked memory that were allocated, as torch rounds them."""
        self.registered: dict[int, int] = {}
        """Host memory that was page-locked where it lies: bytes by address."""
        FakeTensorMode.avoid_device_init = property(lambda _: True)
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def wait(self, what: str, stream: int | None = None) -> None:
        """The host waits for the device, or one of its streams."""
        self.waits[f"{what}: {asked_by()}"] += 1
        self.order.host_waits(stream)

    def clear(self) -> None:
        """Count anew from here on."""
        self.waits.clear()
        self.world.clear()
        self.operations.clear()
        self.memory.forget_peak()

    def has_locked(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the host is in page-locked memory."""
        if getattr(tensor.untyped_storage(), "page_locked", False):
            return True
        at = tensor.data_ptr()
        return any(start <= at < start + size for start, size in self.registered.items())

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the host reads of a tensor of the device."""
        twin = twins.twin_of(tensor)
        if twin is not None:
            return twin.clone()
        unknown = 1 if tensor.dtype.is_floating_point else 0
        return torch.full(tensor.shape, unknown, dtype=tensor.dtype)


class Dispatch(TorchDispatchMode):
    """Sends every operation to the device or the host."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        name = func._schema.name
        on_device = any(map(_is_on_device, flat))
        if on_device:
            self.gpu.operations.note(func)
        if name.startswith("c10d::"):
            return self.gpu.world.collective(func, flat, args, on_device)
        if not on_device:
            if not func.is_view:
                tensors = [x for x in flat if isinstance(x, torch.Tensor)]
                self.gpu.order.host_touches(tensors, func._schema.is_mutable)
            return func(*args, **kwargs)
        if (special := _SPECIAL.get(name)) is not None:
            result = special(self.gpu, func, args, kwargs)
            if result is not NotImplemented:
                return result
        return _on_device(self.gpu, func, args, kwargs, flat)


def _is_on_device(x: Any) -> bool:
    return isinstance(x, FakeTensor) or (isinstance(x, torch.device) and x.type == "cuda")


def _on_device(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any], flat: Sequence[Any]) -> Any:
    values = twins.computed(func, args, kwargs, flat)
    with gpu.fake:
        result = func(*args, **kwargs)
    mutable = func._schema.is_mutable
    if values is not None:
        twins.keep(result, values)
    elif mutable:
        twins.forget([x for x, a in zip(args, func._schema.arguments, strict=False) if _writes(a)])
    made = [t for t in tree_flatten(result)[0] if isinstance(t, FakeTensor)]
    for tensor in made:
        if tensor.device.type == "cuda":
            gpu.memory.saw(tensor)
    read = [x for x in flat if isinstance(x, FakeTensor)]
    gpu.order.works(read, [t for t in made if mutable or not _is_view(t, read)])
    return result


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_view(tensor: torch.Tensor, read: Sequence[torch.Tensor]) -> bool:
    key = tensor.untyped_storage()._cdata
    return any(key == x.untyped_storage()._cdata for x in read)


# ---------------------------------------------------------------- between host and device


def _item(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    gpu.wait("item", gpu.order.current)
    return func(gpu.read(args[0]))


def _to_copy(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, to = args[0], kwargs.get("device")
    if isinstance(tensor, FakeTensor) and to is not None and torch.device(to).type == "cpu":
        on_host = gpu.read(tensor).to(kwargs.get("dtype") or tensor.dtype)
        if kwargs.get("non_blocking", False):  # into page-locked memory, which torch takes for it
            lock(on_host)
        _to_host(gpu, tensor, on_host, kwargs.get("non_blocking", False))
        return on_host
    if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor):
        _from_host(gpu, tensor, kwargs.get("non_blocking", False))
    return NotImplemented


def _copy(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    to, frm, *rest = args
    non_blocking = kwargs.get("non_blocking", bool(rest and rest[0]))
    if isinstance(to, FakeTensor):
        if isinstance(frm, torch.Tensor) and not isinstance(frm, FakeTensor):
            _from_host(gpu, frm, non_blocking)
        return NotImplemented
    _to_host(gpu, frm, to, non_blocking)
    if (twin := twins.twin_of(frm)) is not None:
        to.copy_(twin)
    return to


def _to_host(gpu: Gpu, frm: torch.Tensor, to: torch.Tensor, non_blocking: bool) -> None:
    gpu.order.works([frm], [])
    if non_blocking and gpu.has_locked(to):
        gpu.order.copies(to, writes=True)
    else:
        gpu.wait("copy to the host", gpu.order.current)


def _from_host(gpu: Gpu, tensor: torch.Tensor, non_blocking: bool) -> None:
    if not non_blocking:
        gpu.wait("copy from the host", gpu.order.current)
    elif gpu.has_locked(tensor):
        gpu.order.copies(tensor, writes=False)
    elif tensor.nbytes > _STAGED_BYTES:
        gpu.wait("copy from pageable memory", gpu.order.current)


def lock(tensor: torch.Tensor) -> torch.Tensor:
    """Mark host memory as page-locked."""
    tensor.untyped_storage().page_locked = True
    return tensor


def _all(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Whether numbers are as they should be, such as finite: where nobody knows them, they are."""
    result = _on_device(gpu, func, args, kwargs, tree_flatten((args, kwargs))[0])
    if twins.twin_of(result) is None and result.numel() <= twins.MOST:
        twins.know(result, torch.ones(result.shape, dtype=result.dtype))
    return result


def _drawn(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What is drawn from probabilities that nobody knows is the last of the choices."""
    probabilities, count = args[:2]
    shape = (*probabilities.shape[:-1], count)
    return _like(gpu, torch.full(shape, probabilities.shape[-1] - 1))


# ---------------------------------------------------------------- shapes that data decide


def _waits_for_shape(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The host waits for the number of elements that are found; it must be known here."""
    flat, _ = tree_flatten((args, kwargs))
    gpu.wait(func._schema.name.removeprefix("aten::"), gpu.order.current)
    values = twins.computed(func, args, kwargs, flat)
    if values is None:
        raise NotImplementedError(f"{func}: the shape depends on values that nobody knows")
    return _like(gpu, values)


def _like(gpu: Gpu, values: Any) -> Any:
    """Fake tensors of known values."""
    many = values if isinstance(values, (list, tuple)) else (values,)
    with gpu.fake:
        found = [torch.empty(v.shape, dtype=v.dtype, device="cuda") for v in many]
    for tensor, value in zip(found, many, strict=True):
        twins.know(tensor, value)
        gpu.memory.saw(tensor)
    return found[0] if values is many[0] else tuple(found)


def _repeat_interleave(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) > 1 or kwargs.get("output_size") is not None:
        return NotImplemented
    return _waits_for_shape(gpu, func, args, kwargs)


def _masked_select(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Values may be unknown where the mask is known."""
    tensor, mask = args
    if twins.twin_of(tensor) is not None or twins.twin_of(mask) is None:
        return _waits_for_shape(gpu, func, args, kwargs)
    gpu.wait("masked_select", gpu.order.current)
    chosen = int(twins.twin_of(mask).expand(torch.broadcast_shapes(tensor.shape, mask.shape)).sum())
    return tensor.new_empty(chosen)


def _index(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return NotImplemented
    return _waits_for_shape(gpu, func, args, kwargs)


_SPECIAL: dict[str, Callable[[Gpu, Any, Any, dict[str, Any]], Any]] = {
    "aten::_local_scalar_dense": _item,
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::masked_select": _masked_select,
    "aten::index": _index,
    "aten::all": _all,
    "aten::multinomial": _drawn,
    "aten::nonzero": _waits_for_shape,
    "aten::unique_consecutive": _waits_for_shape,
    "aten::_unique2": _waits_for_shape,
    "aten::bincount": _waits_for_shape,
}
