"""Lower bounds on the bytes of a role or an engine, which a search needs thousands of times.

The memory ledger has every phase on every rank, and takes milliseconds for a layout that it has not
seen. The bound takes microseconds: it has the phases that are the largest, on the first and on the
last rank of a set alone. Paddings and the rounding of page-locked memory are left out, so that it
is never above the ledger, and no layout that fits is lost.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import NamedTuple

from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.placement.bases import may_share
from verl_hpc.planner.memory import overheads, passes, role, rollout
from verl_hpc.planner.memory.buffers import bucket_elements
from verl_hpc.planner.memory.parameters import stage_elements, trained_elements
from verl_hpc.planner.memory.rollout import RolloutShape
from verl_hpc.planner.memory.shape import RoleShape
from verl_hpc.planner.memory.step_rows import (
    columns,
    longest_row,
    num_micro_batches,
    rectangles_of,
)
from verl_hpc.planner.memory.transfer import most_bucket_bytes
from verl_hpc.planner.search.cuts import Cut
from verl_hpc.planner.search.searched_run import SearchedRun
from verl_hpc.planner.search.set_bytes import Limits, RankBytes, SetBytes


class MemoryBound:
    """Lower bounds on the memory of the roles and engines of one run."""

    def __init__(self, run: SearchedRun) -> None:
        config, hardware = run.config, run.hardware
        self._config, self._settings, self._archs = config, run.settings, run.archs
        self._hardware, self._on_gpu = hardware, hardware.kind.is_gpu
        self._num_ranks = run.num_ranks
        self._buckets = most_bucket_bytes(self._on_gpu) * config.generates
        self._shapes: dict[tuple[object, ...], RoleShape] = {}
        self._largest: dict[tuple[int, int | None, bool], tuple[int, int]] = {}
        device, host = hardware.device_bytes, hardware.host_bytes_per_rank
        self.limits = Limits(
            None if device is None else device - run.spare_bytes, host if self._on_gpu else None
        )

    def outside(self, num_ranks: int, has_roles: bool) -> SetBytes:
        """Bytes of a set's ranks that belong to neither a role nor an engine."""
        process = overheads.PROCESS if self._on_gpu else overheads.CPU_PROCESS
        device = self._buckets
        if not self._on_gpu:
            device += process
        else:
            device += overheads.CONTEXT
            device += columns(self._config, num_ranks if has_roles else 1)
            if self._num_ranks > 1:
                per_node = self._hardware.ranks_per_node
                device += overheads.peer_channels(self._num_ranks, per_node)
                device += overheads.COMMUNICATOR
        rank = RankBytes(device, 0, device, 0, process, process)
        return SetBytes(rank, rank)

    def role(self, name: str, cut: Cut, generates: bool, num_sharing: int) -> SetBytes:
        """Least bytes of a role on a layout.

        Args:
            name: of the role.
            cut: its layout.
            generates: whether an engine generates on the same ranks.
            num_sharing: roles that compute in its engine.
        """
        shape = self._shape(name, cut)
        count = num_micro_batches(self._config, cut.layout)
        scores = self._config.samples_to_train or num_sharing > 0
        computing = self._passes(
            shape, None if count is None else min(count, cut.layout.pp), scores
        )
        states = (self._state(name, shape, cut.layout, stage) for stage in (0, cut.layout.pp - 1))
        first, last = (
            self._rank(name, state, most, cut.layout, generates, num_sharing)
            for state, most in zip(states, computing, strict=True)
        )
        return SetBytes(first, last)

    def _state(self, name: str, shape: RoleShape, layout: TrainLayout, stage: int) -> _State:
        """State of a role, without frozen weights where another role may hold them."""
        state = _state(shape, layout, stage)
        return state._replace(weights=state.trained) if self._may_share(name) else state

    def _may_share(self, name: str) -> bool:
        """Whether an earlier role may hold its frozen weights; the layouts decide."""
        names = list(self._settings)
        before = names[: names.index(name)]
        mine = self._settings[name]
        return any(may_share(mine, self._settings[other]) for other in before)

    def _shape(self, name: str, cut: Cut) -> RoleShape:
        """Shape with one replica: none of the values read from it depend on their number."""
        sizes = cut.layout
        key = (name, sizes.tp, sizes.pp, sizes.vpp, sizes.ep, sizes.cp, cut.recompute)
        if key not in self._shapes:
            settings = self._settings[name]
            self._shapes[key] = RoleShape.of(
                self._archs[name],
                replace(sizes, dp=sizes.cp),
                settings.model,
                cut.parallel(settings.parallel),
                head=settings.head,
                trainable=settings.trainable,
                on_gpu=self._on_gpu,
                lora=settings.lora,
            )
        return self._shapes[key]

    def _passes(self, shape: RoleShape, count: int | None, scores: bool) -> tuple[int, int]:
        """Bytes of the largest pass, on the first and on the last stage."""
        key = (id(shape), count, scores)
        if key not in self._largest:
            first, last = (
                self._largest_pass(shape, stage, count, scores)
                for stage in (0, shape.layout.pp - 1)
            )
            self._largest[key] = first, last
        return self._largest[key]

    def _largest_pass(self, shape: RoleShape, stage: int, count: int | None, scores: bool) -> int:
        """Bytes of the largest pass on a stage, with the fragmentation that it causes."""
        largest, tokens = 0, longest_row(self._config, shape.layout)
        if shape.trainable:
            rectangles = rectangles_of(shape, self._config)
            largest = sum(passes.update(shape, stage, tokens, count, rectangles).values())
        if scores or not shape.trainable:
            largest = max(largest, sum(passes.forward(shape, stage, tokens).values()))
        return largest + int(overheads.ALLOCATOR * largest) * shape.on_gpu

    def _rank(
        self,
        name: str,
        state: _State,
        computing: int,
        layout: TrainLayout,
        generates: bool,
        num_sharing: int,
    ) -> RankBytes:
        offload, trainable = self._settings[name].offload, self._settings[name].trainable
        weights_go, optimizer_goes = (
            generates and offload.parameters,
            generates and offload.optimizer,
        )
        resident = state.weights + state.gradients + state.optimizer + state.fp8
        copied = state.weights * weights_go + state.optimizer * optimizer_goes
        kept = resident - copied - state.gradients * (generates and offload.gradients)
        lora = self._settings[name].lora
        # Adapters that start at zero are left out in place of a copy.
        first = 0 if lora is not None and lora.path is None else state.trained
        copies = first * num_sharing  # of weights that compute in its engine
        saved = 0
        if self._config.checkpoint.background and trainable:
            saved = state.trained // layout.dp + 3 * role.MASTER_BYTES * state.owned
        if not self._on_gpu:
            # On cores, device and host memory are the same. Buckets are empty while a checkpoint is
            # written.
            saving = saved - self._buckets
            return RankBytes(resident + copies, max(computing, saving), kept + copies + copied)
        communicators = self._communicators(layout)
        if self.limits.host is None:
            return RankBytes(resident, computing, kept, communicators)
        swapped = first * (num_sharing > 0 and not weights_go)
        # Permanent copies are made after all engines are built.
        building = (state.weights + state.optimizer) * generates
        return RankBytes(
            resident,
            computing,
            kept,
            communicators,
            building,
            copies + swapped + copied + saved,
        )

    def _communicators(self, layout: TrainLayout) -> int:
        count = overheads.communicators_of(layout)
        return count * overheads.COMMUNICATOR * (self._num_ranks > 1)

    def engine(self, shape: RolloutShape, beside_roles: bool) -> SetBytes | None:
        """Least bytes of a rollout engine; None where it would refuse to start.

        Args:
            shape: of the engine.
            beside_roles: whether the same ranks train.
        """
        device = self._hardware.device_bytes
        if any(rollout.why_not(shape, stage, device) for stage in range(shape.pp)):
            return None
        first, last = (self._of_engine(shape, stage, beside_roles) for stage in (0, shape.pp - 1))
        return SetBytes(first, last)

    def _of_engine(self, shape: RolloutShape, stage: int, beside_roles: bool) -> RankBytes:
        terms = rollout.generating(shape, stage, self._hardware.device_bytes)
        awake = sum(terms.values())
        group = overheads.COMMUNICATOR * (self._on_gpu and shape.tp * shape.pp > 1)
        if self._on_gpu and shape.engine == "vllm" and beside_roles:
            held, arriving = rollout.asleep(shape), rollout.rollout_weights(shape, stage)
        else:
            # It never sleeps; transformers has a cache only while it generates.
            held, arriving = awake - terms["kv_cache"] * (shape.engine == "hf"), 0
        return RankBytes(held + group, arriving, awake + group)


class _State(NamedTuple):
    """Bytes that an engine holds, on any replica."""

    weights: int
    trained: int
    """Part of the weights that training changes."""
    gradients: int
    optimizer: int
    fp8: int
    owned: int
    """Least number of elements that the optimizer owns."""


def _state(shape: RoleShape, layout: TrainLayout, stage: int) -> _State:
    elements = stage_elements(shape, stage)
    weights, fp8 = elements.total * shape.item_bytes, role.fp8_copies(shape, stage)
    if not shape.trainable:
        return _State(weights, weights, 0, 0, fp8, 0)
    trained = weights
    if shape.adapters is not None:
        elements = trained_elements(shape, stage)
        trained = elements.total * shape.item_bytes
        weights = role.frozen(shape, stage) + trained
    replicas = layout.tp * layout.dp // (layout.ep * layout.etp)
    padding = 64 * elements.num_parameters
    owned = _least_owned(elements.dense, layout.dp, layout.vpp, padding)
    owned += _least_owned(elements.expert, replicas, layout.vpp, padding)
    numbers = 2 if shape.dtype == "float32" else 3  # moments, and masters
    gradients = elements.total * role.MASTER_BYTES
    return _State(weights, trained, gradients, numbers * role.MASTER_BYTES * owned, fp8, owned)


def _least_owned(num_elements: int, num_replicas: int, num_chunks: int, padding: int) -> int:
    """Least number of elements that a replica's optimizer owns: its share, if all padding between
    parameters and at the ends of buckets were its own (`memory.buffers`)."""
    if num_replicas == 1:
        return num_elements
    # A bucket of each chunk, full ones, and three where an embedding has its own.
    num_buckets = num_elements // bucket_elements(num_replicas) + num_chunks + 3
    padding += lcm(num_replicas, 128) * num_buckets
    return max(num_elements // num_replicas - padding, 0)
