"""A slow, obvious transfer in one process: the oracle for plans.

Every element of every logical tensor gets a number of its own; memories are numpy arrays; a plan is
carried out message by message. What a rank must end up with is computed without the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod

import numpy as np

from verl_hpc.layout.box import Box, View
from verl_hpc.layout.moves import Step, moves_of
from verl_hpc.layout.planner import Plan
from verl_hpc.layout.shard_map import Holder, ShardMap

EMPTY = -1


def logical_values(shard_map: ShardMap) -> dict[str, np.ndarray]:
    """Distinct numbers for every element of every tensor."""
    values, first = {}, 0
    for name, spec in shard_map.tensors.items():
        size = prod(spec.shape)
        values[name] = np.arange(first, first + size).reshape(spec.shape)
        first += size
    return values


def window(memory: np.ndarray, view: View, box: Box) -> np.ndarray:
    item = memory.itemsize
    return np.lib.stride_tricks.as_strided(
        memory[view.offset :], box.shape, [s * item for s in view.strides]
    )


def local_sizes(shard_map: ShardMap) -> dict[Holder, dict[str, int]]:
    sizes: dict[Holder, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for region in shard_map.regions:
        pairs, name = zip(region.box.shape, region.view.strides, strict=True), region.view.name
        end = region.view.offset + sum((n - 1) * s for n, s in pairs) + 1
        for holder in region.holders:
            sizes[holder][name] = max(sizes[holder][name], end)
    return sizes


def empty_memory(shard_map: ShardMap) -> dict[Holder, dict[str, np.ndarray]]:
    return {
        holder: {name: np.full(size, EMPTY) for name, size in sizes.items()}
        for holder, sizes in local_sizes(shard_map).items()
    }


def filled_memory(shard_map: ShardMap) -> dict[Holder, dict[str, np.ndarray]]:
    """Every region written straight from the logical tensors: what a layout says it is."""
    memory = empty_memory(shard_map)
    values = logical_values(shard_map)
    for region in shard_map.regions:
        for holder in region.holders:
            there = window(memory[holder][region.view.name], region.view, region.box)
            assert (there == EMPTY).all(), f"{region} overlaps another region"
            there[...] = values[region.tensor][region.box.slices]
    return memory


def check_memory(found: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> None:
    """One holder has these tensors and no others; EMPTY is padding, which no region speaks of."""
    expected = {name: t.ravel() for name, t in tensors.items() if (t != EMPTY).any()}
    assert set(found) == set(expected)
    for name, wanted in expected.items():
        held = found[name]
        assert (held == wanted[: len(held)]).all(), name
        assert (wanted[len(held) :] == EMPTY).all(), name


def carry_out(plan: Plan, source: ShardMap, target: ShardMap) -> tuple[dict, dict[int, int]]:
    """Run a plan for all ranks in turn; return target memories and elements received per rank."""
    have, want = filled_memory(source), empty_memory(target)
    values = logical_values(source)
    ranks = sorted({int(h) for h in (*source.holders, *target.holders) if not isinstance(h, str)})
    moves = {rank: moves_of(plan, rank) for rank in ranks}
    received: dict[int, int] = defaultdict(int)

    def put(rank: int, views: tuple[View, ...], box: Box, data: np.ndarray) -> None:
        assert views
        for view in views:
            there = window(want[rank][view.name], view, box)
            assert (there == EMPTY).all(), "an element arrived twice"
            there[...] = data

    for rank, work in moves.items():
        for copy in work.copies:
            data = window(have[rank][copy.source.name], copy.source, copy.fragment.box)
            put(rank, copy.targets, copy.fragment.box, data)
        for read in work.reads:
            assert read.file in source.holders
            data = values[read.fragment.tensor][read.fragment.box.slices]
            put(rank, read.targets, read.fragment.box, data)
    for index in range(len(plan.hops)):
        hop = {rank: work.hops[index] for rank, work in moves.items()}
        wires = _sent(hop, have, want)
        for rank, step in ((rank, step) for rank, steps in hop.items() for step in steps):
            for item in step.receives:
                data = wires[step.frm, rank].pop(0)
                assert (data != EMPTY).all(), "a relay sent what it had not received"
                received[rank] += data.size
                put(rank, item.targets, item.fragment.box, data)
        assert not any(wires.values()), "sent and never received"
    return want, received


def _sent(hop: dict[int, Sequence[Step]], have: dict, want: dict) -> dict:
    """What is under way of a hop by (sender, receiver), fragment by fragment."""
    wires: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
    for rank, steps in hop.items():
        for step in steps:
            for item in step.sends:
                memory = (want if item.relay else have)[rank][item.view.name]
                wires[rank, step.to].append(window(memory, item.view, item.fragment.box).copy())
    return wires


def split(matrix: np.ndarray, parts: int, part: int, axis: int = 0) -> np.ndarray:
    """One of so many equal parts of a matrix."""
    return np.split(matrix, parts, axis=axis)[part]


def padded_rows(table: np.ndarray, multiple: int, parts: int, part: int) -> np.ndarray:
    """A part of the rows of a table that is padded to a multiple."""
    missing = -len(table) % multiple
    padded = np.pad(table, ((0, missing), (0, 0)), constant_values=EMPTY)
    return split(padded, parts, part)


def elements_of(shard_map: ShardMap, holder: Holder) -> dict[str, set[int]]:
    """Flat indices of the elements one holder has, tensor by tensor."""
    values = logical_values(shard_map)
    elements: dict[str, set[int]] = defaultdict(set)
    for region in shard_map.held_by(holder):
        elements[region.tensor] |= set(values[region.tensor][region.box.slices].ravel().tolist())
    return elements
