"""The rivals of `benchmarks/scale.py`: what this project did before, and what needs no thought.

Every rank plans the move of all samples for all ranks, with the planner of weights; facts travel as
pickled objects.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from itertools import accumulate

from verl_hpc.layout.box import Box, View
from verl_hpc.layout.planner import Plan, plan_transfer
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec, dtype_name
from verl_hpc.step.batch import COLUMNS, Samples
from verl_hpc.step.redistribute import Groups


def pickled_facts(samples: Samples, placement: str) -> int:
    """Bytes of all samples and who has them, as objects."""
    return len(pickle.dumps(list(zip(samples, samples.owners[placement], strict=True))))


def plan_of_the_world(
    samples: Samples,
    columns: Sequence[str],
    node_of: Sequence[int],
    source: tuple[str, Groups],
    target: tuple[str, Groups],
) -> Plan:
    """All messages of all ranks: a box for each sample and column."""
    held, wanted = (_column_map(samples, columns, *placement) for placement in (source, target))
    return plan_transfer(held, wanted, node_of)


def _column_map(
    samples: Samples, columns: Sequence[str], placement: str, groups: Groups
) -> ShardMap:
    tensors: dict[str, TensorSpec] = {}
    regions: list[Region] = []
    for name in columns:
        lengths = _lengths(samples, name)
        starts = [0, *accumulate(lengths)]
        tensors[name] = TensorSpec((starts[-1],), dtype_name(COLUMNS[name].dtype))
        filled = [0] * len(groups)
        for i, owner in enumerate(samples.owners[placement]):
            if lengths[i]:
                box = Box((starts[i],), (starts[i + 1],))
                view = View(name, filled[owner], (1,))
                regions.append(Region(name, box, tuple(groups[owner]), view))
                filled[owner] += lengths[i]
    return ShardMap(tensors, regions)


def _lengths(samples: Samples, name: str) -> list[int]:
    of: Mapping[str, list[int]] = {
        "sequence": [sample.length for sample in samples],
        "token": [sample.response_length for sample in samples],
    }
    return of[COLUMNS[name].per]
