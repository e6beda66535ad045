"""Process groups of a world of which one rank is there: no message is sent.

Every other rank is taken to have what this one has, so known numbers are summed and gathered as if
all ranks had sent the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from tests.dry_gpu import twins
from tests.dry_gpu.streams import Clock, Order

_NCCL = 1 << 20
"""Number of the first stream of NCCL's."""


class _Work(Work):
    """What a stream waits for before it touches the result."""

    def __init__(self, order: Order, done: Clock) -> None:
        super().__init__()
        self._order, self._done = order, done

    def wait(self, timeout: Any = None) -> bool:
        self._order.wait(self._order.current, self._done)
        return True

    def is_completed(self) -> bool:
        return True


class Group(NamedTuple):
    """A process group of this rank."""

    backend: str
    ranks: tuple[int, ...]


class FakeWorld:
    """The groups of a rank, and what went through them.

    Args:
        rank: this process's.
        size: ranks of the world.
        order: of the device's streams.
    """

    def __init__(self, rank: int, size: int, order: Order) -> None:
        self.rank, self.size, self._order = rank, size, order
        self.used: Counter[Group] = Counter()
        """Collectives on the device by group. NCCL opens a communicator for each that is used."""
        self.bytes: Counter[str] = Counter()
        """Bytes that collectives on the device read and write, by operation."""
        self._groups: dict[str, Group] = {}
        self._streams: dict[Group, int] = {}
        self._last: Work | None = None

    def start(self) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.size)
        everyone = tuple(range(self.size))
        self._groups[dist.group.WORLD.group_name] = Group("cpu:gloo,cuda:nccl", everyone)
        make = dist.new_group

        def new_group(
            ranks: Sequence[int] | None = None, timeout: Any = None, backend: Any = None, **_: Any
        ) -> Any:
            members = everyone if ranks is None else tuple(ranks)
            group = make(list(members), backend="fake")
            if self.rank in members:
                self._groups[group.group_name] = Group(backend or "cpu:gloo,cuda:nccl", members)
            return group

        for module in (dist, dist.distributed_c10d):
            module.new_group = new_group
            module.get_backend_config = lambda *_: "cpu:gloo,cuda:nccl"
            module.barrier = lambda *_, **__: None
            module.all_gather_object = _gather_object
            module.broadcast_object_list = lambda *_, **__: None
        of_groups: Any = dist.ProcessGroup
        of_groups._start_coalescing = lambda *_: None
        of_groups._end_coalescing = lambda group, _: self._all_begun(group)

    def clear(self) -> None:
        self.used.clear()
        self.bytes.clear()

    def collective(self, func: Any, flat: Sequence[Any], args: Any, on_device: bool) -> Any:
        """Note a collective, or a message, and what is known of its result."""
        name = func._schema.name.removeprefix("c10d::")
        group = self._group_of(flat)
        refused = "gloo" if on_device else "nccl"
        assert group.backend != refused, f"{name} on {group}, whose tensors are elsewhere"
        if on_device:
            tensors = [x for x in flat if isinstance(x, torch.Tensor)]
            _check_sizes(name, args, len(group.ranks))
            if len(group.ranks) > 1:
                self.used[group] += 1
                size = sum(t.numel() * t.element_size() for t in tensors)
                self.bytes[name.strip("_")] += size
            _know_results(name, args, len(group.ranks))
        self._last = self._begun(name, group, args, flat) if on_device else FakeWork()
        results = [
            self._last.boxed() if "Work" in str(r.type) else args[0] for r in func._schema.returns
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _begun(self, name: str, group: Group, args: Any, flat: Sequence[Any]) -> Work:
        """NCCL's work on a stream of the group's own."""
        stream = self._streams.setdefault(group, _NCCL + len(self._streams))
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        # What is sent comes first; else the results do.
        results = [] if name == "send" else [x for x in tree_leaves(args[0]) if x is not None]
        for tensor in tensors:  # kept until the work is done
            tensor.untyped_storage().history.recorded.add(stream)
        return _Work(self._order, self._order.aside(stream, tensors, results))

    def _all_begun(self, group: dist.ProcessGroup) -> Work:
        """What a group has begun together."""
        stream = self._streams.get(self._groups[group.group_name])
        return FakeWork() if stream is None else _Work(self._order, self._order.moment(stream))

    def _group_of(self, flat: Sequence[Any]) -> Group:
        for x in flat:
            if isinstance(x, torch.ScriptObject):
                with contextlib.suppress(RuntimeError):  # it is no group
                    return self._groups[ProcessGroup.unbox(x).group_name]
        raise AssertionError("a collective without a group")


def _gather_object(found: list[Any], mine: Any, group: Any = None) -> None:
    del group
    found[:] = [mine] * len(found)


def _is_sum(args: Any) -> bool:
    with contextlib.suppress(RuntimeError, AttributeError):
        return "SUM" in str(dist.ReduceOp.unbox(args[2]))
    return False


def _check_sizes(name: str, args: Any, size: int) -> None:
    """What NCCL would read or write beyond."""
    if name == "_allgather_base_":
        whole, part = args[0], args[1]
    elif name == "_reduce_scatter_base_":
        part, whole = args[0], args[1]
    else:
        return
    assert whole.numel() == size * part.numel(), (name, whole.shape, part.shape, size)
    assert whole.dtype == part.dtype, (name, whole.dtype, part.dtype)


def _know_results(name: str, args: Any, size: int) -> None:
    """Twins of what arrives, all ranks having sent the same; else it is unknown."""
    if name == "_allgather_base_" and (twin := twins.twin_of(args[1])) is not None:
        _fill(args[0], torch.cat([twin.reshape(-1)] * size))
    elif name == "allgather_" and (twin := twins.twin_of(args[1][0])) is not None:
        for part in args[0][0]:
            _fill(part, twin)
    elif name == "allreduce_" and (twin := twins.twin_of(args[0][0])) is not None:
        if _is_sum(args):
            twin.mul_(size)
    elif name not in ("send", "broadcast_", "barrier"):
        twins.forget(tree_leaves(args[0]))  # where it arrives


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    twins.know(tensor, values.reshape(tensor.shape).clone())
