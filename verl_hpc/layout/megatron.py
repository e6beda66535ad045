"""Where Megatron-core keeps each logical tensor.

Local parameters are named `chunk{c}.<name of the parameter in GPTModel>`, c counting the virtual
pipeline chunks of a rank. What is fused or permuted is described here and nowhere else:

- `linear_qkv` stacks, per key/value group, the group's query heads, its key head and its value
  head; a rank holds an equal share of those rows (with more ranks than groups, part of a group);
- `linear_fc1` of a rank stacks its rows of the gate projection over its rows of the up projection;
- vocabulary rows are padded so that they divide; padding belongs to no logical tensor;
- tied embeddings are held twice where the first and the last stage are different ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Literal

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import RankGrid
from verl_hpc.layout.heads import HEAD_TENSORS, Head, model_tensors
from verl_hpc.layout.pipeline import layers_per_stage, stage_layers
from verl_hpc.layout.shard_map import (
    Holder,
    Region,
    RowBlock,
    ShardMap,
    TensorSpec,
    columns,
    slice_blocks,
    stack_rows,
    whole,
)

Backend = Literal["local", "transformer_engine"]
"""Which layer specification Megatron-core is built with; they spell fused norms differently."""


@dataclass(frozen=True)
class TrainLayout:
    """Parallel sizes of a training layout; `dp` counts every replica of the dense parameters."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    first_rank: int = 0

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


def padded_vocab(vocab_size: int, tp: int, multiple: int = 64) -> int:
    """Vocabulary rows after padding to a multiple of both `multiple` and `tp`.

    This is how vLLM pads, too: at equal tp the shards of both are the same rows.
    """
    unit = lcm(multiple, tp)
    return -(-vocab_size // unit) * unit


def check_megatron_layout(arch: Architecture, layout: TrainLayout) -> None:
    """Refuse sizes that Megatron-core cannot shard this model by.

    Raises:
        LayoutError: naming the two numbers that do not divide.
    """
    rules = [
        ("attention heads", arch.num_heads, "tensor_parallel", layout.tp),
        ("ffn size", arch.ffn_size, "expert_tensor_parallel", layout.etp)
        if arch.is_moe
        else ("ffn size", arch.ffn_size, "tensor_parallel", layout.tp),
    ]
    if arch.is_moe:
        rules.append(("experts", arch.num_experts, "expert_parallel", layout.ep))
    elif layout.ep > 1 or layout.etp > 1:
        raise LayoutError(f"expert_parallel = {layout.ep} with a model that has no experts")
    for what, number, axis, size in rules:
        if number % size:
            raise LayoutError(
                f"{axis} = {size} does not divide the model's {number} {what}; "
                f"choose a divisor of {number}"
            )
    groups = arch.num_kv_heads
    if max(groups, layout.tp) % min(groups, layout.tp):
        raise LayoutError(
            f"tensor_parallel = {layout.tp} and the model's {groups} key/value heads: one must "
            "divide the other"
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
    return ShardMap(
        *_MegatronMap(arch, layout, backend, head, vocab_multiple).build(dtype or arch.dtype)
    )


class _MegatronMap:
    def __init__(
        self,
        arch: Architecture,
        layout: TrainLayout,
        backend: Backend,
        head: Head,
        vocab_multiple: int,
    ) -> None:
        self.arch = arch
        self.layout = layout
        self.fused_norms = backend == "transformer_engine"
        self.head: Head = head
        self.vocab_multiple = vocab_multiple
        self.counts = layers_per_stage(arch.num_layers, layout.pp, layout.vpp)
        # One tuple object per shard: regions of a stage share it, and the planner groups by it.
        self.stage_ranks: list[tuple[Holder, ...]] = [
            self.layout.grid.ranks(pp=s) for s in range(layout.pp)
        ]
        self.shard_ranks: list[list[tuple[Holder, ...]]] = [
            [self.layout.grid.ranks(pp=s, tp=t) for t in range(layout.tp)] for s in range(layout.pp)
        ]

    def build(self, dtype: str) -> tuple[dict[str, TensorSpec], list[Region]]:
        return model_tensors(self.arch, self.head, dtype), list(self._regions())

    def _regions(self) -> Iterator[Region]:
        arch, layout = self.arch, self.layout
        embedding = "chunk0.embedding.word_embeddings.weight"
        yield from self._vocabulary(embedding, "model.embed_tokens.weight", 0)
        for chunk in range(layout.vpp):
            for stage in range(layout.pp):
                for local, layer in enumerate(stage_layers(self.counts, stage, chunk)):
                    prefix = f"chunk{chunk}.decoder.layers.{local}"
                    yield from self._layer(prefix, f"model.layers.{layer}", stage)
        last, final = layout.pp - 1, f"chunk{layout.vpp - 1}"
        norm = f"{final}.decoder.final_layernorm.weight"
        yield whole(norm, "model.norm.weight", (arch.hidden_size,), self.stage_ranks[last])
        yield from self._output_layer(f"{final}.output_layer.weight", last)

    def _output_layer(self, name: str, stage: int) -> Iterator[Region]:
        if self.head in HEAD_TENSORS:
            tensor, shape = HEAD_TENSORS[self.head], (1, self.arch.hidden_size)
            yield whole(name, tensor, shape, self.stage_ranks[stage])
        elif not self.arch.tied_embeddings:
            yield from self._vocabulary(name, "lm_head.weight", stage)
        elif self.layout.pp * self.layout.vpp > 1:
            yield from self._vocabulary(name, "model.embed_tokens.weight", stage)

    def _vocabulary(self, name: str, tensor: str, stage: int) -> Iterator[Region]:
        tp, vocab = self.layout.tp, self.arch.vocab_size
        rows = padded_vocab(vocab, tp, self.vocab_multiple) // tp
        for t, holders in enumerate(self.shard_ranks[stage]):
            block = RowBlock(tensor, min(t * rows, vocab), min((t + 1) * rows, vocab))
            if block.start < block.stop:
                yield from stack_rows(name, [block], holders, (self.arch.hidden_size,))

    def _layer(self, local: str, logical: str, stage: int) -> Iterator[Region]:
        arch, everyone = self.arch, self.stage_ranks[stage]
        hidden = (arch.hidden_size,)
        fused = self.fused_norms
        norm = "self_attention.linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight"
        yield whole(f"{local}.{norm}", f"{logical}.input_layernorm.weight", hidden, everyone)
        yield from self._attention(f"{local}.self_attention", f"{logical}.self_attn", stage)
        # Transformer Engine fuses this norm into fc1, which a mixture of experts does not have.
        fused_mlp = fused and not arch.is_moe
        norm = "mlp.linear_fc1.layer_norm_weight" if fused_mlp else "pre_mlp_layernorm.weight"
        yield whole(
            f"{local}.{norm}", f"{logical}.post_attention_layernorm.weight", hidden, everyone
        )
        if arch.is_moe:
            yield from self._experts(f"{local}.mlp", logical, stage)
        else:
            mlp = f"{logical}.mlp"
            yield from self._swiglu(
                (f"{local}.mlp.linear_fc1.weight", f"{local}.mlp.linear_fc2.weight"),
                (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight", f"{mlp}.down_proj.weight"),
                self.shard_ranks[stage],
            )

    def _attention(self, local: str, logical: str, stage: int) -> Iterator[Region]:
        arch, tp = self.arch, self.layout.tp
        q_size = arch.num_heads * arch.head_size
        rows = (q_size + 2 * arch.num_kv_heads * arch.head_size) // tp
        kinds = [("weight", (arch.hidden_size,))] + [("bias", ())] * arch.qkv_bias
        for t, holders in enumerate(self.shard_ranks[stage]):
            for kind, row_shape in kinds:
                blocks = slice_blocks(self._qkv_rows(logical, kind), t * rows, (t + 1) * rows)
                yield from stack_rows(f"{local}.linear_qkv.{kind}", blocks, holders, row_shape)
            width = q_size // tp
            yield columns(
                f"{local}.linear_proj.weight",
                f"{logical}.o_proj.weight",
                arch.hidden_size,
                t * width,
                (t + 1) * width,
                holders,
            )
        if arch.qk_norm:
            for head in "qk":
                yield whole(
                    f"{local}.{head}_layernorm.weight",
                    f"{logical}.{head}_norm.weight",
                    (arch.head_size,),
                    self.stage_ranks[stage],
                )

    def _qkv_rows(self, logical: str, kind: str) -> Iterator[RowBlock]:
        """Rows of the fused projection: per key/value group its q heads, its k, its v."""
        arch, size = self.arch, self.arch.head_size
        q_rows = arch.num_heads // arch.num_kv_heads * size
        for group in range(arch.num_kv_heads):
            yield RowBlock(f"{logical}.q_proj.{kind}", group * q_rows, (group + 1) * q_rows)
            yield RowBlock(f"{logical}.k_proj.{kind}", group * size, (group + 1) * size)
            yield RowBlock(f"{logical}.v_proj.{kind}", group * size, (group + 1) * size)

    def _swiglu(
        self,
        local: tuple[str, str],
        logical: tuple[str, str, str],
        shards: Sequence[tuple[Holder, ...]],
    ) -> Iterator[Region]:
        fc1, fc2 = local
        gate, up, down = logical
        arch = self.arch
        width = arch.ffn_size // len(shards)
        for t, holders in enumerate(shards):
            start, stop = t * width, (t + 1) * width
            blocks = [RowBlock(gate, start, stop), RowBlock(up, start, stop)]
            yield from stack_rows(fc1, blocks, holders, (arch.hidden_size,))
            yield columns(fc2, down, arch.hidden_size, start, stop, holders)

    def _experts(self, local: str, logical: str, stage: int) -> Iterator[Region]:
        arch, layout, names = self.arch, self.layout, self.arch.expert_names
        shape = (arch.num_experts, arch.hidden_size)
        router = f"{logical}.{names.router}"
        yield whole(f"{local}.router.weight", router, shape, self.stage_ranks[stage])
        per_rank = arch.num_experts // layout.ep
        for e in range(layout.ep):
            shards = [layout.expert_grid.ranks(pp=stage, ep=e, etp=t) for t in range(layout.etp)]
            for i in range(per_rank):
                base = f"{logical}.{names.experts}.{e * per_rank + i}"
                yield from self._swiglu(
                    self._expert_parameters(f"{local}.experts", i),
                    (
                        f"{base}.{names.gate}.weight",
                        f"{base}.{names.up}.weight",
                        f"{base}.{names.down}.weight",
                    ),
                    shards,
                )

    def _expert_parameters(self, local: str, index: int) -> tuple[str, str]:
        if self.fused_norms:  # TEGroupedMLP numbers the weights of its grouped linears
            return f"{local}.linear_fc1.weight{index}", f"{local}.linear_fc2.weight{index}"
        base = f"{local}.local_experts.{index}"
        return f"{base}.linear_fc1.weight", f"{base}.linear_fc2.weight"
