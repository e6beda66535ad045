"""Move samples between placements; each rank packs and unpacks only its own messages.

Each rank derives from the facts about samples what it lacks and who has it, so no central plan is
needed. Messages go through host memory over the control plane: they are small, their peers change
every step, and GPU communication keeps buffers for each peer it ever had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from verl_hpc.runtime.control import Control
from verl_hpc.runtime.world import World
from verl_hpc.step.batch import Columns, Samples
from verl_hpc.step.column_bytes import ColumnBytes, check_columns, copied
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
    lacks enter it once, and are then passed on within the node. Where both placements have every
    sample on the same ranks, nothing is packed or sent.

    Args:
        control: control plane of both placements' ranks.
        samples: lengths and owners of all samples.
        columns: this rank's columns under the source placement; on ranks outside it no samples, but
            the names and widths.
        source, target: (placement label, groups of ranks).
        device: device of the result.

    Raises:
        FlowError: a column is not in `COLUMNS`, or its shape differs from that.
    """
    check_columns(samples, columns)
    if source[1] == target[1] and samples.owners[source[0]] == samples.owners[target[0]]:
        return copied(columns, device)  # on every rank alike, so that none waits for a message
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
