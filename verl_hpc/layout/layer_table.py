"""Tables that describe the decoder layer of a model family, tensor by tensor; they hold no code.

All names are below the layer's own prefix: `model.layers.3.` in a checkpoint and in vLLM,
`chunk0.decoder.layers.1.` in Megatron-core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Size = Literal[
    "hidden_size",
    "ffn_size",
    "dense_ffn_size",
    "shared_ffn_size",
    "gate_up_size",
    "num_heads",
    "head_size",
    "q_size",
    "kv_size",
    "o_size",
    "q_rank",
    "kv_rank",
    "kv_down_size",
    "kv_up_size",
    "num_experts",
    "one",
]
"""Attributes of `Architecture`."""

Need = Literal[
    "always",
    "attention_bias",
    "use_qk_norm",
    "low_rank_queries",
    "direct_queries",
    "shared_ffn_size",
]
"""When a row is there: always, or where this attribute of `Architecture` is true."""

Split = Literal["whole", "rows", "columns", "query_heads", "key_value_heads"]
"""Part of a tensor that a tensor-parallel rank holds: all of it, an equal share of its rows, of its
columns, or of its rows by whole heads (a key/value head may be on several ranks)."""

Engine = Literal["local", "transformer_engine", "vllm"]
"""Megatron-core with either of its layer specifications (they name parameters differently), or
vLLM."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of a decoder layer, and the parameter of each engine that it is in.

    Rows with the same parameter are fused in it in the order of the table, and must be split
    alike. Rows with the same name, in the same parameter, are parts of one tensor of the
    checkpoint, one under another. In rows of an expert, `{}` stands for its number.

    Args:
        name: in the Hugging Face checkpoint.
        shape: (rows, columns) or (elements,).
        split: over tensor-parallel ranks.
        megatron: parameter of Megatron-core; a rank numbers its own experts from 0.
        transformer_engine: the same with Transformer Engine's layers; default `megatron`.
        vllm: parameter of vLLM, which stacks all experts; default `name`.
        needs: what a model must have for the row to be there.
        is_buffer: whether it is no parameter: it is float32, and no optimizer changes it.
        is_float32_in_vllm: whether vLLM has it in float32, whatever the type of the others.
        is_stacked: whether one tensor of the checkpoint has this of all experts, each transposed:
            (experts, columns, rows) or (experts, elements).
        expert: number of the expert whose row this is.
    """

    name: str
    shape: tuple[Size, ...]
    split: Split
    megatron: str
    transformer_engine: str = ""
    vllm: str = ""
    needs: Need = "always"
    is_buffer: bool = False
    is_float32_in_vllm: bool = False
    is_stacked: bool = False
    expert: int = 0

    def parameter(self, engine: Engine) -> str:
        if engine == "vllm":
            return self.vllm or self.name
        return (engine == "transformer_engine" and self.transformer_engine) or self.megatron

    def of_expert(self, number: int) -> Row:
        """This row of one expert; the parameters keep their `{}`."""
        return replace(self, name=self.name.format(number), expert=number)


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The tensors of a decoder layer, and those of each of its experts.

    Args:
        rows: of the layer.
        expert_rows: of each expert.
        rotary_interleaved: rotary embeddings turn neighbours in a head, elements 0 and 1, and not
            an element of its first half and one of its second.
        clamped_swiglu: rows of gate and up alternate, and are limited before they meet
            (`engines.megatron.spec.clamped_swiglu`).
        vllm_embedding: vLLM's name of the embedding.
    """

    rows: tuple[Row, ...]
    expert_rows: tuple[Row, ...] = ()
    rotary_interleaved: bool = False
    clamped_swiglu: bool = False
    vllm_embedding: str = "model.embed_tokens.weight"

    @property
    def is_fused(self) -> bool:
        """Whether the checkpoint has several of these in one tensor."""
        return len({row.name for row in self.rows}) < len(self.rows)

    def has(self, name: str) -> bool:
        return any(row.name == name for row in self.rows)

    def uses(self, size: Size) -> bool:
        """Whether a tensor has this size."""
        return any(size in row.shape for row in self.rows)

    @property
    def buffers(self) -> frozenset[str]:
        return frozenset(row.name for row in self.rows if row.is_buffer)

    def where(self, is_there: Callable[[Row], bool]) -> LayerTable:
        """This table without the rows that a model does not have."""
        return replace(self, rows=tuple(filter(is_there, self.rows)))


def by_parameter(rows: Sequence[Row], engine: Engine) -> dict[str, list[Row]]:
    """Rows grouped by the parameter that they are in."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.parameter(engine), []).append(row)
    return grouped
