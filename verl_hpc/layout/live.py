"""Check a shard map against the parameters that an engine really has, before a byte moves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_hpc.errors import ModelError
from verl_hpc.layout.box import row_major_strides
from verl_hpc.layout.shard_map import Region, ShardMap, dtype_name

_PADDED = ("model.embed_tokens.weight", "lm_head.weight")
"""Logical tensors whose local rows may be more than the map's: padding of the vocabulary."""
_MOST_LISTED = 20


def check_parameters(
    shard_map: ShardMap, rank: int, parameters: Mapping[str, Any], engine: str
) -> None:
    """Refuse a map that does not fill every parameter of this rank, wholly and in its type.

    Args:
        shard_map: of the engine's layout.
        rank: the rank that holds the parameters.
        parameters: torch's, by local name; buffers excluded.
        engine: what to call it in the error.

    Raises:
        ModelError: lists every parameter that one of both has alone, or with another shape or type.
    """
    expected: dict[str, list[Region]] = defaultdict(list)
    for region in shard_map.held_by(rank):
        expected[region.view.name].append(region)
    # A rank may hold nothing but padding of the vocabulary.
    padded = {r.view.name for r in shard_map.regions if r.tensor in _PADDED}
    problems = [f"{n}: in the map, and not in the engine" for n in expected if n not in parameters]
    for name, parameter in parameters.items():
        if name in expected:
            problems += _differences(name, parameter, expected[name], shard_map)
        elif name not in padded:
            problems.append(f"{name}: in the engine ({_described(parameter)}), and not in the map")
    if problems:
        more = len(problems) - _MOST_LISTED
        listed = problems[:_MOST_LISTED] + [f"and {more} more"] * (more > 0)
        raise ModelError(
            f"{engine} has other parameters than verl_hpc's map of this model, so its weights "
            "cannot be filled; the installed version may differ from the one that the map was "
            "written for:\n  " + "\n  ".join(listed)
        )


def _differences(
    name: str, parameter: Any, regions: Sequence[Region], shard_map: ShardMap
) -> Iterator[str]:
    actual = _described(parameter)
    dtypes = {shard_map.tensors[region.tensor].dtype for region in regions}
    if dtypes != {dtype_name(parameter.dtype)}:
        yield f"{name}: the engine has {actual}, the map {' and '.join(sorted(dtypes))}"
    strides = row_major_strides((1, *parameter.shape))
    end = 0
    for region in sorted(regions, key=lambda r: r.view.offset):
        held = tuple(sorted(region.view.strides, reverse=True))  # the tensor may lie transposed
        if region.view.offset != end or strides[len(strides) - len(held) :] != held:
            end = -1
            break
        end += region.box.num_elements
    size = strides[0]
    whole = end == size or (0 <= end < size and all(r.tensor in _PADDED for r in regions))
    if not whole or not parameter.is_contiguous():
        rows = " and ".join(f"{r.tensor}{list(r.box.shape)}" for r in regions[:4])
        more = " ..." if len(regions) > 4 else ""
        yield f"{name}: the engine has {actual}, the map {rows}{more}"


def _described(parameter: Any) -> str:
    return f"{list(parameter.shape)} of {dtype_name(parameter.dtype)}"
