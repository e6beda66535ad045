"""Move samples between placements; each rank packs and unpacks only its own messages.

Each rank derives from the facts about samples what it lacks and who has it, so no central plan is
needed. Messages go through host memory over the control plane: they are small, their peers change
every step, and GPU communication keeps buffers for each peer it ever had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from verl_hpc.runtime.control import Control
from verl_hpc.runtime.world import World
from verl_hpc.step.batch import COLUMNS, Columns, Samples
from verl_hpc.step.routes import Groups, Routes


def redistribute(
    world: World,
    control: Control,
    samples: Samples,
    columns: Columns,
    source: tuple[str, Groups],
    target: tuple[str, Groups],
    device: torch.device,
) -> Columns:
    """Return this rank's columns under the target placement; the ranks of both placements call it.

    A rank receives only what it lacks, from a rank of its own node if possible; data that a node
    lacks enter it once, and are then passed on within the node.

    Args:
        control: control plane of both placements' ranks.
        samples: lengths and owners of all samples.
        columns: this rank's columns under the source placement, of the shapes in `COLUMNS`; on
            ranks outside it no samples, but the names and widths.
        source, target: (placement label, groups of ranks).
        device: device of the result.
    """
    content = ColumnBytes(samples, columns)
    routes = Routes(world.rank, world.node_of, source[1], target[1])
    # Pack what this rank has by target group, and allocate buffers for what it lacks by source.
    held = _by_owner(columns.positions, samples.owners[target[0]])
    packed = {group: content.pack(members) for group, members in held.items()}
    here = routes.target_group
    positions = [] if here is None else samples.owned_by(target[0], here)
    lacking = _by_owner(positions, samples.owners[source[0]])
    arrived = {
        group: packed[here]
        if group == routes.source_group and here is not None
        else np.empty(content.num_bytes(members), np.uint8)
        for group, members in lacking.items()
    }
    # Hop 0 goes to ranks of the source's node, or to one rank per other node, which forwards the
    # message within its node in hop 1.
    sends = [(rank, packed[group]) for group in packed for rank in routes.receivers(group)]
    origins = {group: routes.origin(group) for group in arrived if group != routes.source_group}
    for hop in (0, 1):
        receives = [(o.rank, arrived[group]) for group, o in origins.items() if o.hop == hop]
        control.exchange(_filled(sends), _filled(receives))
        sends = [(mate, arrived[group]) for group in origins for mate in routes.mates(group)]
    parts = [(lacking[group], message) for group, message in arrived.items()]
    return content.unpack(positions, parts, device)


def _filled(messages: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(rank, data) for rank, data in messages if data.size]


def _by_owner(positions: Sequence[int], owners: Sequence[int]) -> dict[int, list[int]]:
    by_owner: dict[int, list[int]] = {}
    for position in positions:
        by_owner.setdefault(owners[position], []).append(position)
    return by_owner


class ColumnBytes:
    """A rank's rows of some columns, as bytes.

    A message about samples has their rows of the first column, then those of the next.

    Args:
        samples: lengths of all samples.
        columns: this rank's columns, of the shapes in `COLUMNS`.
    """

    def __init__(self, samples: Samples, columns: Columns) -> None:
        self._samples, self._widths = samples.samples, columns.widths
        self._dtypes = {name: COLUMNS[name].dtype for name in columns.values}
        self._columns = columns

    @cached_property
    def _rows(self) -> dict[str, dict[int, Any]]:
        """The bytes of each row in host memory, by column and position."""
        return {
            name: dict(zip(self._columns.positions, self._on_host(name), strict=True))
            for name in self._dtypes
        }

    def pack(self, positions: Sequence[int]) -> Any:
        """Pack samples that this rank has into a message, (n,) uint8."""
        rows = [self._rows[name][position] for name in self._dtypes for position in positions]
        return np.concatenate(rows) if rows else np.empty(0, np.uint8)

    def num_bytes(self, positions: Iterable[int]) -> int:
        """Count the bytes of a message about any samples."""
        return sum(self._bytes(name, i) for i in positions for name in self._dtypes)

    def unpack(
        self,
        positions: Sequence[int],
        parts: Iterable[tuple[Sequence[int], Any]],
        device: torch.device,
    ) -> Columns:
        """Build the columns of the samples at `positions` from messages.

        Args:
            positions: the samples, ascending.
            parts: (positions of a message's samples, message).
            device: device of the columns.
        """
        rows: dict[str, dict[int, Any]] = {name: {} for name in self._dtypes}
        for members, message in parts:
            # A message is column-major: split it into rows, then give each column its own.
            sizes = [self._bytes(name, i) for name in self._dtypes for i in members]
            ends = accumulate(sizes)
            pieces = [message[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            for number, by_position in enumerate(rows.values()):
                begin = number * len(members)
                by_position.update(zip(members, pieces[begin : begin + len(members)], strict=True))
        values = {
            name: self._column(name, [by_position[i] for i in positions], positions, device)
            for name, by_position in rows.items()
        }
        return Columns(positions, values, self._widths)

    def _column(
        self, name: str, rows: Sequence[Any], positions: Sequence[int], device: torch.device
    ) -> list[torch.Tensor]:
        if not positions:  # a split into no parts gives one
            return []
        lengths = [self._elements(name, i) for i in positions]
        values = torch.empty(sum(lengths), dtype=self._dtypes[name])
        np.concatenate(rows, out=values.view(torch.uint8).numpy())
        width = self._widths.get(name)
        parts = values.to(device).split(lengths)
        return [part if width is None else part.view(-1, width) for part in parts]

    def _on_host(self, name: str) -> list[Any]:
        """Return the bytes of each row, with one copy from the device for all."""
        rows, positions = self._columns[name], self._columns.positions
        if not rows:
            return []
        joined = torch.cat([row.flatten() for row in rows]).to(self._dtypes[name]).cpu()
        sizes = [self._bytes(name, i) for i in positions]
        return np.split(joined.view(torch.uint8).numpy(), list(accumulate(sizes))[:-1])

    def _bytes(self, name: str, position: int) -> int:
        return self._elements(name, position) * self._dtypes[name].itemsize

    def _elements(self, name: str, position: int) -> int:
        return self._samples[position].count(COLUMNS[name].per) * self._widths.get(name, 1)
