"""Lower bounds on the bytes of a role or an engine, from the ledger of a run of it alone.

The memory ledger takes milliseconds for a layout that it has not seen, and a search compares
thousands. But layouts that differ in their number of replicas alone hold the same, except for the
optimizer's state, which replicas share. So the ledger is asked once, on the first and on the last
rank of a role, and what replicas share is divided by their number. Padding is left out, and may put
a replica's share some megabytes below the mean, which `SLACK` allows for: no layout that fits is
lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from verl_hpc.placement.bases import may_share
from verl_hpc.planner.memory import overheads, rollout
from verl_hpc.planner.memory.rank import RankMemory, Terms
from verl_hpc.planner.memory.rollout import RolloutShape
from verl_hpc.planner.memory.step_rows import columns, num_micro_batches
from verl_hpc.planner.search.cuts import Cut
from verl_hpc.planner.search.set_bytes import Limits, RankBytes, SetBytes
from verl_hpc.planner.search.set_ledger import SearchedRun, set_ledger

SLACK = 2**25
"""Bytes by which the limits are above the hardware's; the ledger of the set has the last word."""
_DIVIDED = frozenset({"masters", "moments", "optimizer_copy", "saved"})
"""Terms that the replicas of a role share."""


class _Bytes(NamedTuple):
    """Bytes of a role on one of its ranks."""

    of_each: RankBytes
    """Bytes that every replica holds."""
    divided: RankBytes
    """One replica's share of what they divide among them."""


class _Known(NamedTuple):
    """Bytes of a role on the first and on the last rank, with this many replicas."""

    dp: int
    ranks: tuple[_Bytes, _Bytes]


class MemoryBound:
    """Lower bounds on the memory of the roles and engines of one run."""

    def __init__(self, run: SearchedRun) -> None:
        self._run, self._on_gpu = run, run.hardware.kind.is_gpu
        self._roles: dict[tuple[object, ...], _Known] = {}
        device, host = run.hardware.device_bytes, run.hardware.host_bytes_per_rank
        device = None if device is None else device - run.spare_bytes + SLACK
        # Host memory of cores is their device's.
        host = None if host is None else host + SLACK
        self.limits = Limits(device, host if self._on_gpu else device)

    def outside(self, num_ranks: int, has_roles: bool) -> SetBytes:
        """Bytes of a set's ranks that belong to neither a role nor an engine."""
        memory = RankMemory(set_ledger(self._run, {}, {}), 0)
        terms = memory.overheads | memory.buckets
        if has_roles and self._on_gpu:
            terms["columns"] = columns(self._run.config, num_ranks)
        process, device = sum(memory.host.process().values()), sum(terms.values())
        if not self._on_gpu:
            process = device = device + process
        rank = RankBytes(device, 0, device, device, 0, process, process)
        return SetBytes(rank, rank)

    def role(self, name: str, cut: Cut, generates: bool, sharing: tuple[str, ...]) -> SetBytes:
        """Least bytes of a role on a layout.

        Args:
            name: of the role.
            cut: its layout.
            generates: whether an engine generates on the same ranks.
            sharing: roles that compute in its engine.
        """
        layout = cut.layout
        count = num_micro_batches(self._run.config, layout)
        held = None if count is None else min(count, layout.pp)
        sizes = (layout.tp, layout.pp, layout.vpp, layout.ep, layout.cp)
        key = (name, sizes, cut.recompute, generates, sharing, held)
        known = self._roles.get(key)
        if known is None:
            known = self._roles[key] = self._known(name, cut, generates, sharing)
        groups = overheads.communicators_of(layout) * (self._on_gpu and self._run.num_ranks > 1)
        alike = RankBytes(communicators=groups * overheads.COMMUNICATOR)
        first, last = (
            RankBytes(
                *(
                    each + part * known.dp // layout.dp
                    for each, part in zip(of_each, divided, strict=True)
                )
            ).plus(alike)
            for of_each, divided in known.ranks
        )
        return SetBytes(first, last)

    def _known(self, name: str, cut: Cut, generates: bool, sharing: tuple[str, ...]) -> _Known:
        layout = cut.layout
        ends = (0, layout.tp * layout.dp * (layout.pp - 1))
        engines = tuple((rank,) for rank in ends) if generates else ()
        of_role = set_ledger(self._run, {name: cut}, dict.fromkeys(sharing, name), engines)
        bases = {name: name} if self._may_share(name) else {}
        of_role = replace(
            of_role,
            layouts=replace(of_role.layouts, bases=bases),
            shapes={one: replace(shape, padded=False) for one, shape in of_role.shapes.items()},
        )
        first, last = (self._bytes(RankMemory(of_role, rank), generates) for rank in ends)
        return _Known(layout.dp, (first, last))

    def _may_share(self, name: str) -> bool:
        """Whether an earlier role may hold its frozen weights; the layouts decide."""
        settings = self._run.settings
        names = list(settings)
        before = names[: names.index(name)]
        return any(may_share(settings[name], settings[other]) for other in before)

    def _bytes(self, memory: RankMemory, generates: bool) -> _Bytes:
        host, resident, kept = memory.host, memory.resident(), memory.kept()
        sending = memory.sending()
        saved: Terms = {}
        built: Terms = {}
        if not self._on_gpu:
            # Copies in host memory are on the device.
            resident |= _on_device(host.page_locked())
            sending |= _on_device(host.page_locked() | host.put_away_while_sending())
            kept |= _on_device(host.page_locked() | host.put_away())
            saved = resident | _on_device(host.saved())
        elif self.limits.host is not None:
            saved = host.page_locked() | host.saved()
            built = host.trained_copies() if generates else {}
        computing = max((sum(one.device.values()) for one in memory.passes()), default=0)
        none: Terms = {}
        parts = (resident, none, sending, kept, none, built, saved)
        divided = RankBytes(*(_divided(part) for part in parts))
        every = RankBytes(*(sum(part.values()) for part in parts))
        of_each = RankBytes(*(a - b for a, b in zip(every, divided, strict=True)))
        return _Bytes(of_each._replace(computing=computing), divided)

    def engine(self, shape: RolloutShape, beside_roles: bool) -> SetBytes | None:
        """Least bytes of a rollout engine; None where it would refuse to start.

        Args:
            shape: of the engine.
            beside_roles: whether the same ranks train.
        """
        device = self._run.hardware.device_bytes
        if any(rollout.why_not(shape, stage, device) for stage in range(shape.pp)):
            return None
        first, last = (self._of_engine(shape, stage, beside_roles) for stage in (0, shape.pp - 1))
        return SetBytes(first, last)

    def _of_engine(self, shape: RolloutShape, stage: int, beside_roles: bool) -> RankBytes:
        terms = rollout.generating(shape, stage, self._run.hardware.device_bytes)
        awake = sum(terms.values())
        group = overheads.COMMUNICATOR * (self._on_gpu and shape.tp * shape.pp > 1)
        if self._on_gpu and shape.engine == "vllm" and beside_roles:
            held = rollout.asleep(shape)
            sending = held + rollout.rollout_weights(shape, stage)
        else:
            # It never sleeps; transformers has a cache only while it generates.
            held = sending = awake - terms["kv_cache"] * (shape.engine == "hf")
        saving = 0 if self._on_gpu else held
        return RankBytes(held + group, 0, sending + group, awake + group, host_saving=saving)


def _divided(terms: Mapping[str, int]) -> int:
    return sum(size for name, size in terms.items() if name.rpartition(".")[2] in _DIVIDED)


def _on_device(terms: Mapping[str, int]) -> Terms:
    """Terms of host memory under names of their own among those of the device."""
    return {f"host.{name}": size for name, size in terms.items()}
