"""What one rank writes of a step: parts of components, and what is its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.index import Entry
from verl_hpc.checkpoint.step_files import StepContents
from verl_hpc.checkpoint.tensor_file import Stored
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.transfer.memory import window

ID_BYTES = 16
"""Of a save's id, in ASCII."""


@dataclass(frozen=True)
class Component:
    """A part of a step: tensors of one kind, and which of them this rank writes."""

    name: str
    shard_map: ShardMap
    tensors: Mapping[str, torch.Tensor]
    """This rank's memory by the local names of the map."""
    regions: Sequence[Region]
    """What this rank writes of it."""


def datasets(
    components: Sequence[Component], contents: StepContents
) -> tuple[list[Stored], list[Entry]]:
    """Of one rank's file, in its order; those of components as the index has them."""
    stored = [Stored(schema.SAVE_ID, torch.uint8, (ID_BYTES,))]
    entries: list[Entry] = []
    for component in components:
        for region in component.regions:
            spec, box = component.shard_map.tensors[region.tensor], region.box
            tensor = f"{component.name}/{region.tensor}"
            entries.append(Entry(tensor, f"{tensor}/{len(entries)}", box.start, box.stop))
            dtype = schema.DTYPES[spec.dtype]
            stored.append(Stored(entries[-1].dataset, dtype, box.shape))
    for key, array in contents.rank_arrays.items():
        stored.append(Stored(f"{schema.RANK}/{key}", array.dtype, tuple(array.shape)))
    return stored, entries


def parts_of(
    save_id: str, components: Sequence[Component], contents: StepContents
) -> Iterator[torch.Tensor]:
    """What `datasets` names, each when it is asked for."""
    yield torch.tensor(list(save_id.encode()), dtype=torch.uint8)
    for component in components:
        for region in component.regions:
            yield window(component.tensors, region.view, region).detach()
    yield from contents.rank_arrays.values()
