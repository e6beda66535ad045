"""Weights quantised to FP8 in blocks, as logical tensors and regions.

A quantised weight is two logical tensors: its values, under its own name, and one scale of each
block of 128 x 128, named as in DeepSeek's checkpoints and in vLLM's `fp8` with `weight_block_size`:
`...q_proj.weight` and `...q_proj.weight_scale_inv`. What is in a block is value x scale.

Both lie with their holders as the weight does. A trainer's rank has values in memory of the shape
of the parameter that the weight is in, and scales of every block that its part of it meets, in a
matrix of the whole weight's blocks. vLLM's parameter has next to it a parameter of scales, so that
every part of a fused parameter must begin where a block does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.layer_table import by_parameter
from verl_hpc.layout.shard_map import Holder, Region, ShardMap, TensorSpec

BLOCK = 128
VALUES, SCALES = "float8_e4m3fn", "float32"
"""Element types."""


class BlockMisfitError(LayoutError):
    """Blocks of a weight do not fall together with the parts of it that ranks have."""


def scale_name(tensor: str) -> str:
    """The logical tensor of a weight's scales."""
    return f"{tensor}_scale_inv"


def scale_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Blocks of a matrix, those at its edges counted: (896, 130) has (7, 2)."""
    return tuple(-(-n // BLOCK) for n in shape)


def fused_modules(arch: Architecture) -> list[list[str]]:
    """Linear layers of a decoder layer, names below it, by what vLLM can only quantise together.

    Norms, biases and a router are no linear layers here: they stay as they are.
    """
    table = arch.layer_table
    groups = [
        [
            row.name.removesuffix(".weight")
            for row in rows
            if len(row.shape) == 2 and row.split != "whole"
        ]
        for rows in by_parameter(table.rows, "vllm").values()
    ]
    experts = [
        row.of_expert(number).name.removesuffix(".weight")
        for number in range(arch.num_experts)
        for row in table.expert_rows
    ]
    return [group for group in [*groups, experts] if group]


def ignored_modules(arch: Architecture, ignored: Sequence[str], layer: int) -> list[str]:
    """Linear layers of one decoder layer, names below it, that are not quantised.

    Args:
        arch: the model.
        ignored: names of modules, or parts of names at dots: `layers.0`, `down_proj`.
        layer: its number.

    Raises:
        LayoutError: an entry names a part of what vLLM fuses.
    """
    left_out: list[str] = []
    for group in fused_modules(arch):
        named = [m for m in group if _names(ignored, f"model.layers.{layer}.{m}")]
        if named and len(named) < len(group):
            other = next(m for m in group if m not in named)
            raise LayoutError(
                f"rollout.ignored_layers leaves out {named[0]} of layer {layer} and not {other}: "
                "vLLM has both in one parameter; name both, or none"
            )
        left_out += named
    return left_out


def _names(ignored: Sequence[str], module: str) -> bool:
    return any(f".{entry}." in f".{module}." for entry in ignored)


def check_ignored(arch: Architecture, ignored: Sequence[str]) -> None:
    """Refuse entries that name nothing, or together everything.

    Raises:
        LayoutError: naming the entry.
    """
    modules = _all_modules(arch)
    for entry in ignored:
        if not any(_names([entry], module) for module in modules):
            always = "embeddings, lm_head, norms and routers always stay as they are"
            raise LayoutError(
                f"rollout.ignored_layers: {entry!r} names no linear layer of the model; names are "
                f"{modules[0]}, or parts of it at dots; {always}"
            )
    if all(_names(ignored, module) for module in modules):
        raise LayoutError(
            "rollout.ignored_layers leaves no layer to quantise; leave rollout.quantization out"
        )


def quantised_tensors(arch: Architecture, ignored: Sequence[str]) -> list[str]:
    """Logical tensors that rollout.quantization is about.

    Raises:
        LayoutError: an entry of `ignored` names nothing, or a part of what is fused.
    """
    check_ignored(arch, ignored)
    left_out = {
        f"model.layers.{layer}.{module}"
        for layer in range(arch.num_layers)
        for module in ignored_modules(arch, ignored, layer)
    }
    return [f"{module}.weight" for module in _all_modules(arch) if module not in left_out]


def _all_modules(arch: Architecture) -> list[str]:
    """Linear layers of all decoder layers, by their whole names."""
    modules = [module for group in fused_modules(arch) for module in group]
    return [f"model.layers.{n}.{module}" for n in range(arch.num_layers) for module in modules]


def mean_item_bytes(arch: Architecture, ignored: Sequence[str], dtype: str) -> float:
    """Bytes of a weight of a quantised model on average, scales counted."""
    names = frozenset(quantised_tensors(arch, ignored))
    specs = _quantised_specs(arch.tensors(dtype), names)
    return sum(spec.num_bytes for spec in specs.values()) / arch.num_parameters


def quantised_engine(engine: ShardMap, names: Iterable[str]) -> ShardMap:
    """A vLLM engine's map with these weights quantised.

    A rank's `qkv_proj` of 256 q, 128 k and 128 v rows has scales of 2, 1 and 1 rows of blocks.

    Raises:
        BlockMisfitError: a part of a weight does not begin and end with blocks.
    """
    chosen = frozenset(names)
    return ShardMap(
        _quantised_specs(engine.tensors, chosen),
        [r for region in engine.regions for r in _in_engine(region, engine, chosen)],
    )


def _in_engine(region: Region, engine: ShardMap, chosen: frozenset[str]) -> Iterator[Region]:
    yield region
    if region.tensor not in chosen:
        return
    shape, box, view = engine.tensors[region.tensor].shape, region.box, region.view
    row, rest = divmod(view.offset, view.strides[0])
    if rest or row % BLOCK or not _is_whole_blocks(box, shape):
        raise BlockMisfitError(
            f"{region.tensor} {list(shape)}: a rank has rows {box.start[0]} to {box.stop[0]} and "
            f"columns {box.start[1]} to {box.stop[1]} of it, from row {row} of {view.name}, which "
            f"are not whole blocks of {BLOCK} x {BLOCK}"
        )
    width = -(-view.strides[0] // BLOCK)
    place = View(scale_name(view.name), row // BLOCK * width, (width, 1))
    yield Region(scale_name(region.tensor), _blocks(box), region.holders, place)


def quantised_source(source: ShardMap, target: ShardMap) -> ShardMap:
    """A trainer's map with the weights quantised that the target has so.

    The views of values are those of the weights. Ranks that share a block all have its scale.
    """
    chosen = frozenset(
        name
        for name, spec in target.tensors.items()
        if spec.dtype == VALUES and name in source.tensors
    )
    if not chosen:
        return source
    # Regions of one rank may meet the same blocks, whose scales it holds only once.
    regions: list[Region] = []
    known: set[tuple[str, Box, tuple[Holder, ...]]] = set()
    for region in source.regions:
        regions.append(region)
        name = scale_name(region.tensor)
        key = name, _blocks(region.box), region.holders
        if region.tensor in chosen and key not in known:
            known.add(key)
            width = scale_shape(source.tensors[region.tensor].shape)[1]
            everything = View(name, 0, (width, 1))
            whole = Box.whole(scale_shape(source.tensors[region.tensor].shape))
            regions.append(Region(*key, everything.of(key[1], whole)))
    return ShardMap(_quantised_specs(source.tensors, chosen), regions)


def spread_tensors(source: ShardMap, names: Iterable[str]) -> list[str]:
    """Select the weights with blocks that may lie on several ranks, in parts.

    Columns 0-192 and 192-384 of a weight on two ranks: the second block is on both.
    """
    return [name for name in names if _is_spread(source, name)]


def _is_spread(source: ShardMap, name: str) -> bool:
    shape, regions = source.tensors[name].shape, source.by_tensor[name]
    if all(_is_whole_blocks(region.box, shape) for region in regions):
        return False
    held: dict[tuple[Holder, ...], set[Box]] = {}
    for region in regions:
        held.setdefault(region.holders, set()).add(region.box)
    all_of_it = Box.whole(shape).num_elements
    return any(sum(box.num_elements for box in boxes) < all_of_it for boxes in held.values())


def _is_whole_blocks(box: Box, shape: Sequence[int]) -> bool:
    starts = not any(start % BLOCK for start in box.start)
    return starts and all(b == n or not b % BLOCK for b, n in zip(box.stop, shape, strict=True))


def _blocks(box: Box) -> Box:
    """The blocks that a box meets."""
    return Box(tuple(start // BLOCK for start in box.start), scale_shape(box.stop))


def _quantised_specs(
    tensors: Mapping[str, TensorSpec], chosen: frozenset[str]
) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for name, spec in tensors.items():
        specs[name] = spec
        if name in chosen:
            specs[name] = TensorSpec(spec.shape, VALUES)
            specs[scale_name(name)] = TensorSpec(scale_shape(spec.shape), SCALES)
    return specs
