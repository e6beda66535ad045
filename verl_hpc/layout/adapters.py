"""Adapters of low rank (LoRA) as logical tensors, and where Megatron-core's ranks hold them.

Every linear layer of a checkpoint has an A and a B of its own, named as in PEFT's files:
`model.layers.3.self_attn.q_proj.lora_A.weight` is (rank, inputs), `.lora_B.weight` (outputs, rank).
Where they lie follows from where the weight does. Megatron-core fuses projections, and so::

    linear_qkv.weight   rows of q, k and v          lora_A   A of q over A of k over A of v, whole
                        of this rank's heads        lora_B   rows of B as the weight's rows lie
    linear_proj.weight  this rank's columns         lora_A   its columns of A
                                                    lora_B   whole

fully_shard cuts both by rows, as all parameters. Of a family without a layer table they have the
names of transformers' modules, which may differ from those of the model's files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.config.lora import LoraConfig
from verl_hpc.errors import LayoutError, ModelError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.fsdp import rows_map
from verl_hpc.layout.heads import HEAD_TENSORS, Head
from verl_hpc.layout.layer_table import Row
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.published import last_part
from verl_hpc.layout.shard_map import (
    Holder,
    Region,
    RowBlock,
    ShardMap,
    TensorSpec,
    columns,
    stack_rows,
    union,
    whole,
)

_WEIGHT = ".weight"


@dataclass(frozen=True)
class AdapterShape:
    """Settings that decide the sizes of adapters."""

    rank: int
    targets: tuple[str, ...] = ()
    """Last parts of the names of linear layers, as q_proj; none for all of them."""

    @classmethod
    def of(cls, lora: LoraConfig) -> AdapterShape:
        """Shape that a configuration asks for."""
        return cls(lora.rank, lora.targets)


@dataclass(frozen=True)
class LocalAdapter:
    """The adapters of one parameter of a rank."""

    weight: str
    """Local name of the parameter that they belong to."""
    targets: tuple[str, ...]
    """Logical weights that have an adapter; their A lie one over another."""
    blocks: tuple[tuple[int, int, int], ...]
    """(index of the target, first row, last row + 1) of the parameter, as rows of B follow each
    other."""
    num_inputs: int
    """Columns of the parameter here."""
    splits_columns: bool
    """Whether ranks have columns of the weight, not rows."""

    @property
    def num_rows(self) -> int:
        """Rows of B on this rank."""
        return sum(stop - start for _, start, stop in self.blocks)


def a_of(weight: str) -> str:
    """Name of the A of a weight, logical or local."""
    return f"{weight.removesuffix(_WEIGHT)}.lora_A"


def b_of(weight: str) -> str:
    """Name of the B of a weight, logical or local."""
    return f"{weight.removesuffix(_WEIGHT)}.lora_B"


def adapter_tensors(
    arch: Architecture, shape: AdapterShape, dtype: str | None = None
) -> dict[str, TensorSpec]:
    """Logical tensors of a model's adapters, in the order of its weights.

    Raises:
        ModelError: a target that the model has not.
    """
    kind, specs = dtype or arch.dtype, {}
    for name, (num_outputs, num_inputs) in _adapted_shapes(arch, shape).items():
        specs[f"{a_of(name)}.weight"] = TensorSpec((shape.rank, num_inputs), kind)
        specs[f"{b_of(name)}.weight"] = TensorSpec((num_outputs, shape.rank), kind)
    return specs


def _adapted_shapes(arch: Architecture, shape: AdapterShape) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights that have adapters, as far as they are known (`Published.adaptable`).

    Raises:
        ModelError: a target that the model has not, or no linear layer at all.
    """
    if arch.published is None:
        sizes = arch.tensors()
        return {name: sizes[name].shape for name in adapted_weights(arch, shape)}
    arch.check_has_tensors()
    weights = arch.published.adaptable
    known = list(dict.fromkeys(map(last_part, weights)))
    for name in shape.targets:
        if name not in known:
            raise ModelError(
                f"lora.target_modules: {name} is no linear layer of a {arch.family} that can have "
                f"adapters; these are {', '.join(known) or 'none'}. Routers have none, nor have "
                "experts, which transformers computes in one product, and layers of their names"
            )
    if not weights:
        raise ModelError(
            f"lora: transformers' {arch.family} has no linear layers (torch.nn.Linear) that could "
            "have adapters; train all weights"
        )
    return {n: s for n, s in weights.items() if last_part(n) in (shape.targets or known)}


def adapted_weights(arch: Architecture, shape: AdapterShape) -> dict[str, Row]:
    """The logical weights that have adapters, in the model's order.

    Raises:
        ModelError: a target that the model has not, multi-latent attention, or a mixture with MLPs
            besides its routed experts or with all of these in one tensor.
    """
    if arch.latent is not None:
        raise ModelError(
            f"lora: adapters of a {arch.family}'s multi-latent attention are not mapped; train all "
            "weights, or choose parallel.engine: fsdp"
        )
    if arch.has_other_mlps or arch.stacks_experts:
        raise ModelError(
            f"lora: a {arch.family} has shared experts, or dense layers before those with experts, "
            "or all experts in one tensor, whose adapters are not mapped; train all weights, or "
            "choose parallel.engine: fsdp"
        )
    rows = list(_linear_rows(arch))
    known = list(dict.fromkeys(last_part(row.name) for row in rows))
    unknown = [name for name in shape.targets if name not in known]
    if unknown:
        raise ModelError(
            f"lora.target_modules: {unknown[0]} is no linear layer of a {arch.family}'s decoder "
            f"layers; they have {', '.join(known)}"
        )
    chosen = [row for row in rows if last_part(row.name) in (shape.targets or known)]
    return {f"model.layers.{n}.{row.name}": row for n in range(arch.num_layers) for row in chosen}


def adapter_shard_map(arch: Architecture, base: ShardMap, shape: AdapterShape) -> ShardMap:
    """Shard map of the adapters of a model whose weights Megatron-core shards as in `base`.

    Raises:
        ModelError: a target that the model has not, or whose layers are not separate parameters.
        LayoutError: a rank would have no row of an adapted parameter.
    """
    regions: list[Region] = []
    adapted = adapted_weights(arch, shape)
    for targets, fused in _fused(base, adapted):
        if adapted[fused[0].tensor].split == "columns":
            regions += _beside_columns(fused, shape.rank)
        else:
            regions += _beside_rows(targets, fused, shape.rank)
    dtype = next(iter(base.tensors.values())).dtype
    return ShardMap(adapter_tensors(arch, shape, dtype), regions)


def trained_map(
    arch: Architecture,
    base: ShardMap,
    head: Head,
    lora: LoraConfig | None,
    sharded_by: TrainLayout | None = None,
) -> ShardMap:
    """Part of a shard map that is trained and saved: everything, or adapters and a one-number head.

    Args:
        arch: the model.
        base: map of its weights.
        head: its output layer.
        lora: settings of its adapters.
        sharded_by: the layout, where fully_shard cuts the weights; None for Megatron-core. Adapters
            are in float32 there, whatever type the weights that they leave as they are have.

    Raises:
        LayoutError, ModelError: layers that cannot have adapters.
    """
    if lora is None:
        return base
    shape = AdapterShape.of(lora)
    if sharded_by is None:
        adapters = adapter_shard_map(arch, base, shape)
    else:
        adapters = rows_map(adapter_tensors(arch, shape, "float32"), sharded_by)
    besides = [HEAD_TENSORS[head]] if head in HEAD_TENSORS else []
    return union([adapters, base.restricted_to(besides)])


def has_adapter(weight: str, adapters: ShardMap) -> bool:
    """Whether a logical weight has an A and a B among those of `adapters`."""
    return f"{a_of(weight)}.weight" in adapters.tensors


def merged_source(source: ShardMap, target: ShardMap, adapters: ShardMap) -> ShardMap:
    """Map of weights that ranks of fully_shard merge with their adapters before they are sent: the
    merged ones have the types of `target`, since they are rounded once."""
    merged = {r.tensor for r in source.regions if has_adapter(r.view.name, adapters)}
    kinds = {name: target.tensors[name] for name in merged & target.tensors.keys()}
    return ShardMap({n: kinds.get(n, spec) for n, spec in source.tensors.items()}, source.regions)


def factors_of(region: Region, rank: int) -> tuple[tuple[str, Box], tuple[str, Box]]:
    """Name and box of the A, and of the B, that a region of a weight is merged with.

    Rows 0-4 and columns 8-16 of a weight are given B[0:4] A[:, 8:16].
    """
    (top, left), (bottom, right) = region.box.start, region.box.stop
    return (
        (f"{a_of(region.tensor)}.weight", Box((0, left), (rank, right))),
        (f"{b_of(region.tensor)}.weight", Box((top, 0), (bottom, rank))),
    )


def factor_name(name: str, box: Box) -> str:
    """Local name of a box of an A or a B in `factor_map`."""
    return f"{name}{[*box.start, *box.stop]}"


def factor_map(weights: ShardMap, adapters: ShardMap) -> ShardMap:
    """Map of the A and B with which the holders of `weights` merge what they hold of each.

    A rank has each box once, as a contiguous tensor of its own, however many regions need it.

    Args:
        weights: of ranks in any layout; those without adapters add nothing.
        adapters: has the specs of all A and B.
    """
    holders: dict[tuple[str, Box], set[Holder]] = defaultdict(set)
    for region in weights.regions:
        spec = adapters.tensors.get(f"{a_of(region.tensor)}.weight")
        if spec is not None:
            for factor in factors_of(region, spec.shape[0]):
                holders[factor].update(region.holders)
    return ShardMap(
        adapters.tensors,
        [
            Region(
                name,
                box,
                tuple(sorted(map(int, ranks))),
                View(factor_name(name, box), 0, row_major_strides(box.shape)),
            )
            for (name, box), ranks in holders.items()
        ],
    )


def local_adapters(
    arch: Architecture, base: ShardMap, shape: AdapterShape, rank: int
) -> list[LocalAdapter]:
    """Adapters of every adapted parameter of a rank."""
    adapted = adapted_weights(arch, shape)
    local = []
    for targets, fused in _fused(base, adapted):
        mine = [region for region in fused if rank in region.holders]
        if mine:
            local.append(_local(mine, targets, adapted))
    return local


def _local(
    mine: Sequence[Region], targets: tuple[str, ...], adapted: Mapping[str, Row]
) -> LocalAdapter:
    first = mine[0]
    width = first.box.shape[1]
    blocks = []
    for region in sorted(mine, key=lambda r: r.view.offset):
        start = region.view.offset // width
        blocks.append((targets.index(region.tensor), start, start + region.box.shape[0]))
    splits = adapted[first.tensor].split == "columns"
    return LocalAdapter(first.view.name, targets, tuple(blocks), width, splits)


def _linear_rows(arch: Architecture) -> Iterator[Row]:
    """Yield the linear layers of a decoder layer, without the router, which every rank holds
    whole."""
    table = arch.layer_table
    experts = [row.of_expert(e) for e in range(arch.num_experts) for row in table.expert_rows]
    for row in (*table.rows, *experts):
        if len(row.shape) == 2 and row.split != "whole":
            yield row


def _fused(
    base: ShardMap, adapted: Mapping[str, Row]
) -> Iterator[tuple[tuple[str, ...], list[Region]]]:
    """Regions of adapted weights, those of one parameter of one layer together, and their weights
    in the model's order.

    Local names repeat from stage to stage, and those of experts from rank to rank.
    """
    groups: dict[tuple[str, str], list[Region]] = defaultdict(list)
    holders: dict[tuple[str, str], set[Holder]] = defaultdict(set)
    known = {name.rpartition(".")[0].rpartition(".")[0] for name in adapted}
    for region in base.regions:
        layer = region.tensor.removesuffix(_WEIGHT).rpartition(".")[0]
        if layer not in known or len(region.box.shape) != 2:
            continue
        key = region.view.name, layer
        holders[key].update(region.holders)
        if region.tensor in adapted:
            groups[key].append(region)
    order = {name: place for place, name in enumerate(adapted)}
    for (parameter, layer), regions in groups.items():
        _check(parameter, regions, holders[parameter, layer])
        targets = sorted({region.tensor for region in regions}, key=order.__getitem__)
        yield tuple(targets), regions


def _check(parameter: str, regions: Sequence[Region], holders: set[Holder]) -> None:
    if not parameter.endswith(_WEIGHT):
        name = last_part(regions[0].tensor)
        raise ModelError(
            f"lora.target_modules: Transformer Engine computes all experts' {name} in one call, "
            "which takes no adapters; leave the experts' layers out, or train with model.dtype: "
            "float32, which PyTorch's layers compute"
        )
    without = holders - {holder for region in regions for holder in region.holders}
    if without:
        names = ", ".join(dict.fromkeys(last_part(region.tensor) for region in regions))
        raise LayoutError(
            f"lora.target_modules: rank {min(map(int, without))} has no row of {names}, since "
            "there are more tensor-parallel ranks than key/value heads; adapt q_proj, k_proj and "
            "v_proj, or lower tensor_parallel"
        )


def _beside_columns(fused: Sequence[Region], rank: int) -> Iterator[Region]:
    weight, name = fused[0].view.name, fused[0].tensor
    num_rows = fused[0].box.shape[0]
    for region in fused:
        start, stop = region.box.start[1], region.box.stop[1]
        yield columns(a_of(weight), f"{a_of(name)}.weight", rank, start, stop, region.holders)
    yield whole(b_of(weight), f"{b_of(name)}.weight", (num_rows, rank), _everyone(fused))


def _beside_rows(targets: Sequence[str], fused: Sequence[Region], rank: int) -> Iterator[Region]:
    weight, width = fused[0].view.name, fused[0].box.shape[1]
    everyone = _everyone(fused)
    for place, name in enumerate(targets):
        view = View(a_of(weight), place * rank * width, (width, 1))
        yield Region(f"{a_of(name)}.weight", Box.whole((rank, width)), everyone, view)
    by_shard: dict[tuple[Holder, ...], list[Region]] = defaultdict(list)
    for region in fused:
        by_shard[region.holders].append(region)
    for holders, regions in by_shard.items():
        ordered = sorted(regions, key=lambda r: r.view.offset)
        blocks = [
            RowBlock(f"{b_of(r.tensor)}.weight", r.box.start[0], r.box.stop[0]) for r in ordered
        ]
        yield from stack_rows(b_of(weight), blocks, holders, (rank,))


def _everyone(fused: Sequence[Region]) -> tuple[Holder, ...]:
    return tuple(sorted({int(h) for region in fused for h in region.holders}))
