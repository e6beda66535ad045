"""Shard map of Megatron-core.

Local parameters are named `chunk{c}.<name of the parameter in GPTModel>`, c counting the virtual
pipeline chunks of a rank. Which tensors are fused in a parameter of a decoder layer is said by the
family's layer table; how they lie in it, by this file:

- `linear_qkv` stacks, per key/value group, the group's query heads, its key head and its value
  head; a rank holds an equal share of those rows (with more ranks than groups, part of a group);
- `linear_fc1` of a rank stacks its rows of the gate projection over its rows of the up projection;
- vocabulary rows are padded so that they divide; padding belongs to no logical tensor;
- tied embeddings are held twice where the first and the last stage are different ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from math import gcd, lcm
from typing import Literal

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import RankGrid, check_divides, check_key_value_heads
from verl_hpc.layout.heads import HEAD_TENSORS, Head, model_tensors
from verl_hpc.layout.layer_regions import parameter_regions, placed, shares
from verl_hpc.layout.layer_table import Row, by_parameter
from verl_hpc.layout.pipeline import layers_per_stage, stage_layers
from verl_hpc.layout.shard_map import (
    Holder,
    Region,
    RowBlock,
    ShardMap,
    padded_rows,
    slice_blocks,
    whole,
)

Backend = Literal["local", "transformer_engine"]
"""Layer specification with which Megatron-core is built; they spell fused norms differently."""


@dataclass(frozen=True)
class TrainLayout:
    """Parallel sizes of a training layout.

    `dp` counts every replica of the dense parameters; `cp` neighbouring ones share sequences.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    first_rank: int = 0
    cp: int = 1
    shard_size: int | None = None
    """Ranks that share one copy of the parameters with fully_shard; None is all of `dp`."""

    def __post_init__(self) -> None:
        assert self.dp % self.cp == 0 and self.dp % self.num_shards == 0, self

    @property
    def num_shards(self) -> int:
        """Parts that fully_shard cuts a parameter into."""
        return self.dp if self.shard_size is None else self.shard_size

    @property
    def sizes_of_model(self) -> dict[str, int]:
        """Sizes that divide the model itself, by setting."""
        return {
            "tensor_parallel": self.tp,
            "pipeline_parallel": self.pp,
            "virtual_pipeline": self.vpp,
            "context_parallel": self.cp,
            "expert_parallel": self.ep,
            "expert_tensor_parallel": self.etp,
        }

    @property
    def num_replicas(self) -> int:
        """Replicas with sequences of their own."""
        return self.dp // self.cp

    @cached_property
    def data_grid(self) -> RankGrid:
        """The dense grid where replicas that share sequences have an axis, order tp-cp-dp-pp.

        tp=1, cp=2, dp=4, pp=2 is, for 8 ranks: cp groups [0,1] [2,3] [4,5] [6,7], and ranks 0, 1,
        4 and 5 have the sequences of dp=0.
        """
        return RankGrid.of(
            self.first_rank, tp=self.tp, cp=self.cp, dp=self.num_replicas, pp=self.pp
        )

    @cached_property
    def shard_grid(self) -> RankGrid:
        """Grid of fully_shard: ranks with the parts of one copy are neighbours.

        dp=4 and shard_size=2 is: shard groups [0,1] [2,3], and copy groups [0,2] [1,3], whose ranks
        hold the same.
        """
        copies = self.dp // self.num_shards
        shards = self.num_shards
        return RankGrid.of(self.first_rank, tp=self.tp, shard=shards, copy=copies, pp=self.pp)

    @cached_property
    def grid(self) -> RankGrid:
        """Dense grid, order tp-dp-pp (see `RankGrid`)."""
        return RankGrid.of(self.first_rank, tp=self.tp, dp=self.dp, pp=self.pp)

    @cached_property
    def expert_grid(self) -> RankGrid:
        """Grid of the experts' parameters, order etp-ep-edp-pp.

        tp=2, dp=2, pp=2 with ep=2, etp=1 is, for 8 ranks: ep groups [0,1] [2,3] [4,5] [6,7],
        expert data-parallel groups [0,2] [1,3] [4,6] [5,7].
        """
        share = self.ep * self.etp
        if (self.tp * self.dp) % share:
            raise LayoutError(
                f"expert_parallel {self.ep} x expert_tensor_parallel {self.etp} does not divide "
                f"tensor_parallel {self.tp} x data_parallel {self.dp}"
            )
        return RankGrid.of(
            self.first_rank, etp=self.etp, ep=self.ep, edp=self.tp * self.dp // share, pp=self.pp
        )

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp * self.dp


def is_expert(parameter: str) -> bool:
    """Whether a parameter of Megatron-core's is one of an expert's."""
    return ".mlp.experts." in parameter


def padded_vocab(vocab_size: int, tp: int, multiple: int = 64) -> int:
    """Vocabulary rows after padding to a multiple of both `multiple` and `tp`.

    vLLM pads in the same way: at equal tp the shards of both are the same rows.
    """
    unit = lcm(multiple, tp)
    return -(-vocab_size // unit) * unit


def tensor_parallel_sizes(arch: Architecture) -> Iterator[tuple[int, str]]:
    """Sizes of linear layers that are divided over tensor-parallel ranks, but for those of heads
    and of routed experts, and what they are called."""
    if not arch.is_moe:
        yield arch.ffn_size, "ffn size"
    yield arch.dense_ffn_size, "ffn size of dense layers"
    yield arch.shared_ffn_size, "ffn size of shared experts"


def check_megatron_layout(arch: Architecture, layout: TrainLayout) -> None:
    """Refuse sizes that Megatron-core cannot shard this model by.

    Raises:
        LayoutError: naming the two numbers that do not divide; or a family without a layer table.
    """
    _ = arch.layer_table
    for axis, size in (("expert_parallel", layout.ep), ("expert_tensor_parallel", layout.etp)):
        if size > 1 and not arch.is_moe:
            raise LayoutError(f"{axis} = {size} with a model that has no experts; leave it out")
    check_divides("tensor_parallel", layout.tp, arch.num_heads, "attention heads")
    if arch.is_moe:
        check_divides("expert_tensor_parallel", layout.etp, arch.ffn_size, "ffn size")
        check_divides("expert_parallel", layout.ep, arch.num_experts, "experts")
        if layout.etp > 1 and arch.linear_bias:
            raise LayoutError(
                f"expert_tensor_parallel = {layout.etp}: experts of a {arch.family} have biases, "
                "which Megatron-core would add once on each rank of an expert; leave it out"
            )
    for size, what in tensor_parallel_sizes(arch):
        check_divides("tensor_parallel", layout.tp, size, what)
    _ = layout.expert_grid  # which refuses sizes that do not divide
    check_key_value_heads("tensor_parallel", layout.tp, arch.num_kv_heads)
    rows = arch.q_size + 2 * arch.kv_size
    if rows % layout.tp:
        raise LayoutError(
            f"tensor_parallel = {layout.tp} does not divide the {rows} rows of the model's fused "
            f"query, key and value projection; choose a divisor of {gcd(rows, arch.num_heads)}"
        )
    layers_per_stage(arch.num_layers, layout.pp, layout.vpp)


def megatron_shard_map(
    arch: Architecture,
    layout: TrainLayout,
    *,
    backend: Backend = "local",
    head: Head = "language_model",
    dtype: str | None = None,
    vocab_multiple: int = 64,
) -> ShardMap:
    """Shard map of a Megatron-core GPTModel.

    Llama with 4 key/value groups on tp=2, dp=2, pp=2 (8 ranks): layer 0 is held by ranks 0-3
    (stage 0); rows of q for groups 0 and 1 by ranks 0 and 2, for groups 2 and 3 by ranks 1 and 3.

    Args:
        arch: the model.
        layout: parallel sizes.
        backend: layer specification of the model.
        head: the output layer; a projection to one number is replicated over tp.
        dtype: element type of the parameters; the architecture's own if None.
        vocab_multiple: rows of the vocabulary are padded to a multiple of this and of tp.

    Raises:
        LayoutError: a size does not divide.
    """
    check_megatron_layout(arch, layout)
    grid, last, final = layout.grid, layout.pp - 1, f"chunk{layout.vpp - 1}"
    # One tuple object per shard: regions of a stage share it, and the planner groups by it.
    everyone = [grid.ranks(pp=s) for s in range(layout.pp)]
    shards: list[list[tuple[Holder, ...]]] = [
        [grid.ranks(pp=s, tp=t) for t in range(layout.tp)] for s in range(layout.pp)
    ]
    vocabulary = partial(
        padded_rows,
        shape=(arch.vocab_size, arch.hidden_size),
        num_rows=padded_vocab(arch.vocab_size, layout.tp, vocab_multiple),
    )
    embedding, norm = "model.embed_tokens.weight", "model.norm.weight"
    first = "chunk0.embedding.word_embeddings.weight"
    regions = list(vocabulary(first, embedding, shards=shards[0]))
    regions += _layers(arch, layout, backend, everyone, shards)
    final_norm, output = f"{final}.decoder.final_layernorm.weight", f"{final}.output_layer.weight"
    regions.append(whole(final_norm, norm, (arch.hidden_size,), everyone[last]))
    if head in HEAD_TENSORS:
        regions.append(whole(output, HEAD_TENSORS[head], (1, arch.hidden_size), everyone[last]))
    elif not arch.tied_embeddings:
        regions += vocabulary(output, "lm_head.weight", shards=shards[last])
    elif layout.pp * layout.vpp > 1:
        regions += vocabulary(output, embedding, shards=shards[last])
    return ShardMap(model_tensors(arch, head, dtype), regions)


def _layers(
    arch: Architecture,
    layout: TrainLayout,
    backend: Backend,
    everyone: Sequence[tuple[Holder, ...]],
    shards: Sequence[Sequence[tuple[Holder, ...]]],
) -> Iterator[Region]:
    """All decoder layers; `everyone` and `shards` have the ranks of each stage."""
    kinds = arch.layer_kinds
    by_stage = [
        {alike: list(_layer(arch, layout, backend, stage, alike, *ranks)) for alike in kinds}
        for stage, ranks in enumerate(zip(everyone, shards, strict=True))
    ]
    counts = layers_per_stage(arch.num_layers, layout.pp, layout.vpp)
    for chunk, stage in product(range(layout.vpp), range(layout.pp)):
        for local, layer in enumerate(stage_layers(counts, stage, chunk)):
            parameter = f"chunk{chunk}.decoder.layers.{local}"
            regions = by_stage[stage][arch.first_alike(layer)]
            yield from placed(regions, f"model.layers.{layer}", parameter)


def _layer(
    arch: Architecture,
    layout: TrainLayout,
    backend: Backend,
    stage: int,
    layer: int,
    everyone: tuple[Holder, ...],
    shards: Sequence[tuple[Holder, ...]],
) -> Iterator[Region]:
    """A decoder layer of a stage, names below the layer."""
    table = arch.table_of(layer)
    for name, rows in by_parameter(table.rows, backend).items():
        yield from parameter_regions(arch, name, rows, everyone, shards, _interleaved)
    per_rank = arch.num_experts // layout.ep
    for e in range(layout.ep if table.expert_rows else 0):
        shards = [layout.expert_grid.ranks(pp=stage, ep=e, etp=t) for t in range(layout.etp)]
        for i in range(per_rank):
            mine = [row.of_expert(e * per_rank + i) for row in table.expert_rows]
            for name, rows in by_parameter(mine, backend).items():
                yield from parameter_regions(arch, name.format(i), rows, shards[0], shards)


def _interleaved(arch: Architecture, rows: Sequence[Row], t: int, n: int) -> Iterator[RowBlock]:
    """Rows of heads lie by key/value group: its q heads, its k, its v; others as elsewhere."""
    if not rows[0].split.endswith("heads"):
        return shares(arch, rows, t, n)
    groups = arch.num_kv_heads
    blocks = [block for g in range(groups) for block in shares(arch, rows, g, groups)]
    length = sum(arch.shape(row)[0] for row in rows) // n
    return slice_blocks(blocks, t * length, (t + 1) * length)
