"""Architecture of a decoder: sizes read from a Hugging Face `config.json`, and its tensors.

Its tensors follow from the layer table of its family (`layout/families.py`), or are those of the
model's files where its family has no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from verl_hpc.errors import LayoutError, ModelError
from verl_hpc.layout.blocks import LatentAttention, RouterShape, latent_attention, router_shape
from verl_hpc.layout.families import FAMILIES, has_table
from verl_hpc.layout.hf_config import parse_hf_config
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.layer_table import LayerTable, Row
from verl_hpc.layout.not_mapped import COMPUTED, NOT_MAPPED, REFUSED, WITH_IMAGES
from verl_hpc.layout.published import (
    Published,
    listed_shapes,
    section_of,
    shapes_in,
    shapes_of,
    sizes_of,
)
from verl_hpc.layout.shard_map import TensorSpec
from verl_hpc.layout.variants import QUANTISED, problems_of

_NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder-only transformer: with RMSNorm, rotary embeddings and SwiGLU where its
    family has a layer table."""

    family: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    """Width of one SwiGLU branch: of the MLP, or of one expert."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    tied_embeddings: bool
    norm_epsilon: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rotated_share: float = 1.0
    """Share of a head's elements that is rotated."""
    max_positions: int | None = 2048
    """Longest sequence; None if its files say no limit."""
    num_experts: int = 0
    experts_per_token: int = 0
    """Experts that each token uses, of `num_experts`."""
    renormalise_router: bool = True
    """Whether the weights of a token's experts sum to one, or are those of all experts' softmax."""
    router: RouterShape = field(default=RouterShape())
    shared_ffn_size: int = 0
    """Width of one SwiGLU branch of all experts that every token goes through; 0 for none."""
    num_dense_layers: int = 0
    """Layers before the first one with experts."""
    dense_ffn_size: int = 0
    """Width of one SwiGLU branch in these; 0 if there are none."""
    latent: LatentAttention | None = None
    """Sizes of multi-latent attention, in which `head_size` is that of queries and keys."""
    attention_bias: bool = False
    """Whether query, key and value projections have biases, in a family whose models differ."""
    use_qk_norm: bool = False
    """Whether queries and keys are normalised, in such a family."""
    window: int = 0
    """Tokens, its own among them, that a token attends to in layers with windows; 0: all."""
    dtype: str = "bfloat16"
    published: Published | None = None
    """What the files say of a model whose family has no layer table."""

    @property
    def is_mapped(self) -> bool:
        """Whether it is computed by a layer table, which Megatron-core and transfers into vLLM's
        own parameters need; others train with fully_shard and reach vLLM by their names."""
        return self.published is None and self.family in FAMILIES

    @property
    def layer_table(self) -> LayerTable:
        """The table of all layers, but for dense ones before those with experts (`table_of`).

        Raises:
            LayoutError: the family has none.
        """
        if not self.is_mapped:
            needs = NOT_MAPPED.get(self.family)
            reason = (
                "parallel.engine: fsdp trains it by its tensors' names; choose engine: megatron"
                if self.family in FAMILIES
                else f"it has no layer table{f', which would need {needs}' if needs else ''}, and "
                "is trained with parallel.engine: fsdp alone"
            )
            raise LayoutError(f"model_type = {self.family!r}: {reason} (docs/models.md, Families)")
        return FAMILIES[self.family].table.where(self.has)

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has an MLP in place of experts."""
        return not self.is_moe or layer < self.num_dense_layers

    def first_alike(self, layer: int) -> int:
        """The first layer with tensors of the same names and shapes: 0, or the first with experts.

        Layer 5 of 8, of which 3 are dense, is like layer 3, and layer 2 like layer 0.
        """
        return 0 if layer < self.num_dense_layers else self.num_dense_layers

    @property
    def layer_kinds(self) -> tuple[int, ...]:
        """A layer of each kind: (0, 3) where the first 3 layers are dense."""
        return tuple(dict.fromkeys(map(self.first_alike, range(self.num_layers))))

    def one_layer(self, layer: int = -1) -> Architecture:
        """This model with one of its layers alone; the last one is of the kind of most layers."""
        number = range(self.num_layers)[layer]
        return replace(self, num_layers=1, num_dense_layers=int(number < self.num_dense_layers))

    def table_of(self, layer: int) -> LayerTable:
        """The tensors of a decoder layer.

        Raises:
            LayoutError: the family has no table.
        """
        if layer >= self.num_dense_layers:
            return self.layer_table
        return FAMILIES[self.family].dense_table.where(self.has)

    def has(self, row: Row) -> bool:
        """Whether a row of a table of its family is there."""
        return row.needs == "always" or bool(getattr(self, row.needs))

    @property
    def rotated_size(self) -> int:
        """Elements of a head that are rotated."""
        return self.latent.rope_size if self.latent else int(self.head_size * self.rotated_share)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def v_size(self) -> int:
        return self.num_kv_heads * (self.latent.value_size if self.latent else self.head_size)

    @property
    def gate_up_size(self) -> int:
        """Rows of a projection that gives both SwiGLU branches."""
        return 2 * self.ffn_size

    @property
    def o_size(self) -> int:
        """Elements that attention gives its output projection."""
        return self.num_heads * (self.latent.value_size if self.latent else self.head_size)

    @property
    def q_rank(self) -> int:
        return (self.latent.q_rank or 0) if self.latent else 0

    @property
    def kv_rank(self) -> int:
        return self.latent.kv_rank if self.latent else 0

    @property
    def kv_down_size(self) -> int:
        """Elements of a token's latent vector, and of the rotated part of its keys."""
        return self.latent.kv_rank + self.latent.rope_size if self.latent else 0

    @property
    def kv_up_size(self) -> int:
        """Elements that all heads compute from a latent vector: keys and values."""
        latent = self.latent
        return self.num_heads * (latent.nope_size + latent.value_size) if latent else 0

    @property
    def one(self) -> int:
        """Rows of a linear layer that gives one number."""
        return 1

    @property
    def low_rank_queries(self) -> bool:
        return self.q_rank > 0

    @property
    def direct_queries(self) -> bool:
        return self.q_rank == 0

    @property
    def is_moe(self) -> bool:
        """Whether it is a mixture of experts by its layer table."""
        return self.is_mapped and bool(self.layer_table.expert_rows)

    @property
    def routed_bytes(self) -> int:
        """Bytes of the ids of the experts that a token is routed to, layer after layer: a byte each
        where a layer has up to 256 experts, else two, little-endian."""
        id_bytes = 1 if self.num_experts <= 256 else 2
        return self.num_layers * self.experts_per_token * id_bytes

    @property
    def some_experts(self) -> bytes:
        """A choice of experts (`routed_bytes`) for a token that no engine has routed."""
        size = self.routed_bytes // (self.num_layers * self.experts_per_token)
        ids = range(self.experts_per_token)
        return b"".join(i.to_bytes(size, "little") for i in ids) * self.num_layers

    @property
    def qkv_bias(self) -> bool:
        return self.layer_table.has("self_attn.q_proj.bias")

    @property
    def linear_bias(self) -> bool:
        """Whether all linear layers but the output layer have biases, experts and routers too."""
        return self.layer_table.has("self_attn.o_proj.bias")

    @property
    def sinks(self) -> bool:
        """Whether each head has a sink, a score without a value."""
        return self.is_mapped and self.layer_table.has("self_attn.sinks")

    @property
    def full_attention_every(self) -> int:
        """See `Family.full_attention_every`."""
        return FAMILIES[self.family].full_attention_every if self.window else 0

    @property
    def full_share(self) -> float:
        """Share of its layers without a window."""
        return 1 / (self.full_attention_every or 1)

    @property
    def clamped_swiglu(self) -> bool:
        """See `LayerTable.clamped_swiglu`."""
        return self.is_mapped and self.layer_table.clamped_swiglu

    @property
    def stacks_experts(self) -> bool:
        """Whether one tensor of the checkpoint has a matrix of all experts."""
        return any(row.is_stacked for row in self.layer_table.expert_rows)

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised; taken to be so, which keeps more activations,
        where the family has no table."""
        return not self.is_mapped or self.layer_table.has("self_attn.q_norm.weight")

    @property
    def rotary_interleaved(self) -> bool:
        return self.layer_table.rotary_interleaved

    @property
    def shared_gate(self) -> bool:
        """Whether a gate weights what the shared expert gives, token by token."""
        return self.layer_table.uses("one")

    @property
    def has_other_mlps(self) -> bool:
        """Whether it has MLPs besides its routed experts: shared ones, or those of dense layers."""
        return bool(self.shared_ffn_size or self.num_dense_layers)

    def shape(self, row: Row) -> tuple[int, ...]:
        """Shape of a tensor of a decoder layer."""
        return tuple(getattr(self, size) for size in row.shape)

    def tensors(self, dtype: str | None = None) -> dict[str, TensorSpec]:
        """Logical tensors by Hugging Face name, in checkpoint order; all of `dtype`.

        Tied embeddings are one tensor, `model.embed_tokens.weight`.

        Raises:
            ModelError: the family has no layer table, and the files of the weights were not there.
        """
        kind = dtype or self.dtype
        return {
            name: TensorSpec(shape, "float32" if name in self.buffers else kind)
            for name, shape in self._shapes()
        }

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of tensors that are no parameters (`Row.is_buffer`, `Published.buffers`)."""
        if self.published is not None:
            return self.published.buffers
        if not self.is_mapped:  # a module of the user's own
            return frozenset()
        return frozenset(
            f"model.layers.{layer}.{name}"
            for layer in range(self.num_layers)
            for name in self.table_of(layer).buffers
        )

    @property
    def without_state(self) -> frozenset[str]:
        """Names of tensors of which an optimizer has no state."""
        return self.buffers | (self.published.frozen if self.published is not None else frozenset())

    @cached_property
    def num_parameters(self) -> int:
        return sum(prod(shape) for _, shape in self._shapes())

    def with_shapes(
        self,
        tensors: Mapping[str, TensorSpec],
        buffers: frozenset[str] = frozenset(),
        frozen: frozenset[str] = frozenset(),
        linears: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Architecture:
        """Return this architecture with other tensors, if its family has no layer table."""
        if self.published is None:
            return self
        shapes = shapes_of(tensors)
        published = replace(
            self.published, shapes=shapes, buffers=buffers, frozen=frozen, linears=linears
        )
        return replace(self, published=published)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        if self.published is None:
            yield from self._shapes_of_table()
        else:
            self.check_has_tensors()
            yield from self.published.shapes.items()

    def check_has_tensors(self) -> None:
        """Raises: ModelError: nothing says the tensors of a model without a layer table."""
        if self.published is not None and not self.published.shapes:
            raise ModelError(
                f"model_type = {self.family!r} has no layer table, so config.json alone does not "
                "say its tensors: they are read from the headers of its weights, and there is no "
                "*.safetensors beside config.json; give the directory of the whole model "
                "(python -m verl_hpc fetch brings one from a hub)"
            )

    def _shapes_of_table(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden_size)
        shapes = {layer: self._shapes_of_layer(layer) for layer in self.layer_kinds}
        for layer in range(self.num_layers):
            for name, shape in shapes[self.first_alike(layer)].items():
                yield f"model.layers.{layer}.{name}", shape
        yield "model.norm.weight", (self.hidden_size,)
        if not self.tied_embeddings:
            yield "lm_head.weight", (self.vocab_size, self.hidden_size)

    def _shapes_of_layer(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Shapes of its tensors, names below the layer."""
        shapes: dict[str, tuple[int, ...]] = {}
        for row in self.rows_of(layer):
            if row.is_stacked:
                shapes[row.name] = (self.num_experts, *reversed(self.shape(row)))
                continue
            rows, *others = self.shape(row)
            above, *_ = shapes.get(row.name, (0,))
            shapes[row.name] = (above + rows, *others)
        return shapes

    def rows_of(self, layer: int) -> Iterator[Row]:
        """Rows of a decoder layer and of all its experts."""
        table = self.table_of(layer)
        yield from table.rows
        for expert in range(self.num_experts):
            for row in table.expert_rows:
                yield row.of_expert(expert)


def read_architecture(path: str | Path, engine: str = "megatron") -> Architecture:
    """Read a model directory, or a `config.json` itself.

    Args:
        path: of either.
        engine: `parallel.engine` of the role that it is for (`has_table`).

    Raises:
        ModelError: nothing there, unreadable, or of a family or variant that is not supported.
    """
    source = Path(path)
    file = source / "config.json" if source.is_dir() else source
    if not file.is_file():
        raise ModelError(
            f"model: no config.json at {source}; give a Hugging Face model directory "
            "or the path of its config.json"
        )
    config = read_json_object(file)
    mapped = has_table(str(config.get("model_type")), engine)
    shapes = None if mapped else shapes_in(file.parent) or listed_shapes(config, str(file))
    return architecture_from(config, str(file), shapes, engine, file.parent)


def architecture_from(
    config: Mapping[str, Any],
    origin: str = "config",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    engine: str = "megatron",
    directory: Path | None = None,
) -> Architecture:
    """Turn the contents of a `config.json` into an `Architecture`.

    Args:
        config: the contents.
        origin: what error messages call them.
        shapes: shapes of the weights' tensors, for a family without a layer table.
        engine: `parallel.engine` of the role that it is for (`has_table`).
        directory: the model's, for such a family.

    Raises:
        ModelError: the family is refused, a field is missing, or a variant is not supported.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(
            f"{origin}: model_type = {model_type!r}; give the config.json of a Hugging Face model, "
            "whose model_type names its family"
        )
    if not has_table(model_type, engine):
        published = Published(config, shapes or {}, directory=directory)
        return _published(model_type, config, origin, published)
    # Name all missing fields at once, before any type is checked.
    missing = [field for field in _NEEDED if field not in config]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ModelError(
            f"{origin}: {', '.join(missing)} {are} needed and not given; give the config.json that "
            "the model's publisher wrote"
        )
    # Anything that this package would compute differently is refused rather than ignored.
    fields = parse_hf_config(config, origin)
    for problem in problems_of(fields):
        raise ModelError(f"{origin}: {problem}")
    rope, family = fields.rope, FAMILIES[model_type]
    moe, num_experts = bool(family.table.expert_rows), fields.routed_experts
    expert_size = (fields.moe_intermediate_size if moe else None) or fields.intermediate_size
    shared_size = fields.shared_expert_intermediate_size
    if shared_size is None:
        shared_size = (fields.n_shared_experts or 0) * expert_size
    num_dense = (fields.first_k_dense_replace or 0) if family.dense_table.rows else 0
    return Architecture(
        family=model_type,
        num_layers=fields.num_hidden_layers,
        hidden_size=fields.hidden_size,
        ffn_size=expert_size,
        num_heads=fields.num_attention_heads,
        num_kv_heads=fields.num_kv_heads,
        head_size=fields.head_size,
        vocab_size=fields.vocab_size,
        tied_embeddings=bool(fields.tie_word_embeddings),
        norm_epsilon=fields.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        rope_scaling=_as_floats(rope) if rope.get("rope_type", "default") != "default" else None,
        rotated_share=rope.get("partial_rotary_factor", 1.0),
        max_positions=fields.max_position_embeddings,
        num_experts=num_experts if moe else 0,
        experts_per_token=min(fields.num_experts_per_tok or 0, num_experts) if moe else 0,
        renormalise_router=not family.norm_topk_prob or bool(fields.norm_topk_prob),
        router=router_shape(fields, family),
        shared_ffn_size=shared_size if family.table.uses("shared_ffn_size") else 0,
        num_dense_layers=num_dense,
        dense_ffn_size=fields.intermediate_size if num_dense else 0,
        latent=latent_attention(fields, family),
        attention_bias=bool(fields.attention_bias),
        use_qk_norm=bool(fields.use_qk_norm),
        window=(fields.sliding_window or 0) if family.full_attention_every else 0,
        dtype=fields.dtype or fields.torch_dtype or "float32",
    )


def _published(
    family: str, config: Mapping[str, Any], origin: str, published: Published
) -> Architecture:
    """Architecture of a family without a layer table."""
    if family in REFUSED:
        raise ModelError(
            f"{origin}: model_type = {family!r} is not supported: it needs {REFUSED[family]}"
        )
    problems = {
        "quantization_config": QUANTISED,
        "is_encoder_decoder": "only decoders are trained",
        "use_bidirectional_attention": "only models that read to the left are trained",
        "audio_config": "sound in prompts is not trained",
    }
    if family not in WITH_IMAGES:
        problems["vision_config"] = "images are in prompts of " + ", ".join(WITH_IMAGES) + " alone"
    for name, why in problems.items():
        if value := config.get(name):
            given = "" if isinstance(value, Mapping) else f" = {value!r}"
            raise ModelError(f"{origin}: {name}{given}: {why}")
    fields = {**config, **section_of(config, "text_config", origin)}
    for name, values in COMPUTED.get(family, {}).items():
        if (value := fields.get(name)) is not None and value not in values:
            only = " or ".join(map(repr, values))
            raise ModelError(
                f"{origin}: {name} = {value!r}: transformers computes a {family} by {only} alone; "
                "choose a model that was trained so"
            )
    sizes = sizes_of(config, origin)
    return Architecture(family, **sizes, published=published)


def _as_floats(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert integers to floats, since 8 and 8.0 are the same setting."""
    return {k: float(v) if type(v) is int else v for k, v in settings.items()}
