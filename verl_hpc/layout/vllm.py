"""Where vLLM keeps each logical tensor, at any tensor-parallel size.

`qkv_proj` stacks a rank's query heads, its key heads and its value heads; with fewer key/value
heads than ranks, each of those is replicated. `gate_up_proj` stacks gate rows over up rows.
Vocabulary rows are padded to a multiple of 64. Experts are stacked along a leading dimension.
Parameter names and shapes follow vLLM 0.32 (`model_executor/models`, `layers/linear.py`,
`layers/vocab_parallel_embedding.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.megatron import padded_vocab
from verl_hpc.layout.shard_map import (
    Holder,
    Region,
    RowBlock,
    ShardMap,
    columns,
    stack_rows,
    whole,
)

VOCAB_MULTIPLE = 64


def check_vllm_layout(arch: Architecture, tp: int) -> None:
    """Refuse a tensor-parallel size that vLLM cannot shard this model by.

    Raises:
        LayoutError: naming the two numbers that do not divide.
    """
    for what, number in (("attention heads", arch.num_heads), ("ffn size", arch.ffn_size)):
        if number % tp:
            raise LayoutError(
                f"rollout tensor_parallel = {tp} does not divide the model's {number} {what}; "
                f"choose a divisor of {number}"
            )
    if padded_vocab(arch.vocab_size, 1, VOCAB_MULTIPLE) % tp:
        raise LayoutError(
            f"rollout tensor_parallel = {tp} does not divide the model's vocabulary of "
            f"{arch.vocab_size} rows padded to a multiple of {VOCAB_MULTIPLE}; choose a power of 2"
        )
    heads = arch.num_kv_heads
    if max(heads, tp) % min(heads, tp):
        raise LayoutError(
            f"rollout tensor_parallel = {tp} and the model's {heads} key/value heads: one must "
            "divide the other"
        )


def vllm_shard_map(
    arch: Architecture, replicas: Sequence[tuple[int, ...]], dtype: str | None = None
) -> ShardMap:
    """Shard map of vLLM engines, one per entry of `replicas` (its ranks in tp order).

    Llama with 2 key/value heads on replicas (0, 1, 2, 3) and (4, 5, 6, 7): ranks 0, 1, 4 and 5
    hold key head 0, ranks 2, 3, 6 and 7 hold key head 1.

    Raises:
        LayoutError: the size does not divide the model.
    """
    tp = len(replicas[0])
    assert all(len(group) == tp for group in replicas)
    check_vllm_layout(arch, tp)
    kind = dtype or arch.dtype
    return ShardMap(arch.tensors(kind), list(_VllmMap(arch, replicas).regions()))


class _VllmMap:
    def __init__(self, arch: Architecture, replicas: Sequence[tuple[int, ...]]) -> None:
        self.arch = arch
        self.tp = len(replicas[0])
        self.shards: list[tuple[Holder, ...]] = [
            tuple(sorted(group[t] for group in replicas)) for t in range(self.tp)
        ]
        self.everyone: tuple[Holder, ...] = tuple(sorted(r for group in replicas for r in group))

    def regions(self) -> Iterator[Region]:
        arch = self.arch
        yield from self._vocabulary("model.embed_tokens.weight")
        for layer in range(arch.num_layers):
            prefix = f"model.layers.{layer}"
            hidden = (arch.hidden_size,)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                yield self._replicated(f"{prefix}.{norm}.weight", hidden)
            yield from self._attention(f"{prefix}.self_attn")
            if arch.is_moe:
                yield from self._experts(prefix)
            else:
                yield from self._mlp(f"{prefix}.mlp")
        yield self._replicated("model.norm.weight", (arch.hidden_size,))
        if not arch.tied_embeddings:
            yield from self._vocabulary("lm_head.weight")

    def _replicated(self, name: str, shape: tuple[int, ...]) -> Region:
        return whole(name, name, shape, self.everyone)

    def _vocabulary(self, name: str) -> Iterator[Region]:
        vocab = self.arch.vocab_size
        # vLLM pads to 64 rows in all, not per rank.
        rows = padded_vocab(vocab, 1, VOCAB_MULTIPLE) // self.tp
        for t, holders in enumerate(self.shards):
            block = RowBlock(name, min(t * rows, vocab), min((t + 1) * rows, vocab))
            if block.start < block.stop:
                yield from stack_rows(name, [block], holders, (self.arch.hidden_size,))

    def _attention(self, prefix: str) -> Iterator[Region]:
        arch, size = self.arch, self.arch.head_size
        q_rows = arch.num_heads // self.tp * size
        kv_rows = max(arch.num_kv_heads // self.tp, 1) * size
        replicas = max(self.tp // arch.num_kv_heads, 1)
        kinds = [("weight", (arch.hidden_size,))] + [("bias", ())] * arch.qkv_bias
        for t, holders in enumerate(self.shards):
            kv = t // replicas
            for kind, row_shape in kinds:
                blocks = [
                    RowBlock(f"{prefix}.q_proj.{kind}", t * q_rows, (t + 1) * q_rows),
                    RowBlock(f"{prefix}.k_proj.{kind}", kv * kv_rows, (kv + 1) * kv_rows),
                    RowBlock(f"{prefix}.v_proj.{kind}", kv * kv_rows, (kv + 1) * kv_rows),
                ]
                yield from stack_rows(f"{prefix}.qkv_proj.{kind}", blocks, holders, row_shape)
            name = f"{prefix}.o_proj.weight"
            yield columns(name, name, arch.hidden_size, t * q_rows, (t + 1) * q_rows, holders)
        if arch.qk_norm:
            for head in "qk":
                yield self._replicated(f"{prefix}.{head}_norm.weight", (size,))

    def _mlp(self, prefix: str) -> Iterator[Region]:
        arch = self.arch
        width = arch.ffn_size // self.tp
        for t, holders in enumerate(self.shards):
            start, stop = t * width, (t + 1) * width
            blocks = [
                RowBlock(f"{prefix}.gate_proj.weight", start, stop),
                RowBlock(f"{prefix}.up_proj.weight", start, stop),
            ]
            yield from stack_rows(
                f"{prefix}.gate_up_proj.weight", blocks, holders, (arch.hidden_size,)
            )
            name = f"{prefix}.down_proj.weight"
            yield columns(name, name, arch.hidden_size, start, stop, holders)

    def _experts(self, prefix: str) -> Iterator[Region]:
        arch, names = self.arch, self.arch.expert_names
        yield self._replicated(f"{prefix}.{names.router}", (arch.num_experts, arch.hidden_size))
        experts = f"{prefix}.{names.experts}"
        stacked = f"{experts}.routed_experts"
        width, hidden = arch.ffn_size // self.tp, arch.hidden_size
        for t, holders in enumerate(self.shards):
            start, stop = t * width, (t + 1) * width
            for expert in range(arch.num_experts):
                base = f"{experts}.{expert}"
                blocks = [
                    RowBlock(f"{base}.{names.gate}.weight", start, stop),
                    RowBlock(f"{base}.{names.up}.weight", start, stop),
                ]
                yield from stack_rows(
                    f"{stacked}.w13_weight",
                    blocks,
                    holders,
                    (hidden,),
                    offset=expert * 2 * width * hidden,
                )
                yield Region(
                    f"{base}.{names.down}.weight",
                    Box((0, start), (hidden, stop)),
                    holders,
                    View(f"{stacked}.w2_weight", expert * hidden * width, (width, 1)),
                )
