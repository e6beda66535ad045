"""Moving samples between placements: each rank packs and unpacks its own messages, and no others.

A rank knows from the facts about samples what it lacks and who has it, so that nobody plans for
others. Messages go through host memory by the control plane's channel: they are small, between
ranks that differ in every step, and a GPU's network keeps buffers for each peer it ever had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from verl_hpc.runtime.control import Control
from verl_hpc.runtime.world import World
from verl_hpc.step.batch import Columns, Samples
from verl_hpc.step.column_bytes import ColumnBytes
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
    """Columns as this rank has them under the target placement; the ranks of both call it.

    A rank receives what it lacks and nothing else; where both placements have every sample on the
    same ranks, nothing is packed or sent. It comes from a rank of its node where one has
    it; what a node lacks enters it once, and is passed on inside.

    Args:
        control: of the ranks of both.
        samples: lengths and owners of all samples.
        columns: what this rank has under the source placement; without samples elsewhere, but
            with the names and widths.
        source, target: (placement label, groups of ranks).
        device: where the result is to be.

    Raises:
        FlowError: a column that `COLUMNS` does not know, or of another shape than it says.
    """
    content = ColumnBytes(samples, columns)
    if source[1] == target[1] and samples.owners[source[0]] == samples.owners[target[0]]:
        return content.on(device)  # on every rank alike, so that none waits for a message
    routes = Routes(world.rank, world.node_of, source[1], target[1])
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
    found: dict[int, list[int]] = {}
    for position in positions:
        found.setdefault(owners[position], []).append(position)
    return found
