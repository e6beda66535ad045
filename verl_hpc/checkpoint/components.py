"""One rank's part of a step: regions of components, and its own arrays."""

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
"""Length of a save's id, in ASCII."""


@dataclass(frozen=True)
class Component:
    """A part of a step: tensors of one kind, and the regions that this rank writes."""

    name: str
    shard_map: ShardMap
    tensors: Mapping[str, torch.Tensor]
    """This rank's memory by the local names of the map."""
    regions: Sequence[Region]
    """Regions that this rank writes."""


def datasets(
    components: Sequence[Component], contents: StepContents
) -> tuple[list[Stored], list[Entry]]:
    """Return the datasets of one rank's file, in order, and the index entries of those of
    components."""
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
    """Yield the tensors of `datasets`, in order, each when it is needed."""
    yield torch.tensor(list(save_id.encode()), dtype=torch.uint8)
    for component in components:
        for region in component.regions:
            yield window(component.tensors, region.view, region).detach()
    yield from contents.rank_arrays.values()
