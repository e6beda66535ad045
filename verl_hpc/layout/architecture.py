"""Architecture of a decoder: sizes read from a Hugging Face `config.json`, and its tensors.

Its tensors follow from the layer table of its family (`layout/families.py`), or are those of the
model's files where its family has no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from verl_hpc.errors import LayoutError, ModelError
from verl_hpc.layout.families import FAMILIES, Family
from verl_hpc.layout.hf_config import SCALED_ROPE, HfConfig, parse_hf_config
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.layer_table import LayerTable, Row
from verl_hpc.layout.not_mapped import NOT_MAPPED, REFUSED, WITH_IMAGES
from verl_hpc.layout.published import Published, shapes_in, shapes_of, sizes_of
from verl_hpc.layout.shard_map import TensorSpec

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
    max_positions: int = 2048
    num_experts: int = 0
    experts_per_token: int = 0
    """Experts that each token uses, of `num_experts`."""
    renormalise_router: bool = True
    """Whether the weights of a token's experts sum to one, or are those of all experts' softmax."""
    dtype: str = "bfloat16"
    published: Published | None = None
    """What the files say of a model whose family has no layer table."""

    @property
    def is_mapped(self) -> bool:
        """Whether the family has a layer table, which Megatron-core and transfers into vLLM's own
        parameters need; others train with fully_shard and reach vLLM by their names."""
        return self.family in FAMILIES

    @property
    def layer_table(self) -> LayerTable:
        """The family's table.

        Raises:
            LayoutError: it has none.
        """
        if not self.is_mapped:
            needs = NOT_MAPPED.get(self.family)
            raise LayoutError(
                f"model_type = {self.family!r} has no layer table"
                f"{f', which would need {needs}' if needs else ''}: it is trained with parallel."
                "engine: fsdp alone, all of its weights (docs/models.md, Families)"
            )
        return FAMILIES[self.family].table

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

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
    def qkv_bias(self) -> bool:
        return self.layer_table.has("self_attn.q_proj.bias")

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised; taken to be so, which keeps more activations,
        where the family has no table."""
        return not self.is_mapped or self.layer_table.has("self_attn.q_norm.weight")

    @property
    def rotary_interleaved(self) -> bool:
        return self.layer_table.rotary_interleaved

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

    @property
    def buffers(self) -> frozenset[str]:
        """Names of tensors that are no parameters (`Published.buffers`)."""
        return self.published.buffers if self.published is not None else frozenset()

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
    ) -> Architecture:
        """Return this architecture with other tensors, if its family has no layer table."""
        if self.published is None:
            return self
        shapes = shapes_of(tensors)
        published = replace(self.published, shapes=shapes, buffers=buffers, frozen=frozen)
        return replace(self, published=published)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        if self.published is None:
            yield from self._shapes_of_table()
        elif self.published.shapes:
            yield from self.published.shapes.items()
        else:
            raise ModelError(
                f"model_type = {self.family!r} has no layer table, so its tensors are read from "
                "its weights, and there is no *.safetensors beside config.json; give the directory "
                "of the whole model"
            )

    def _shapes_of_table(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {}
        for row in self._layer_rows():
            rows, *others = self.shape(row)
            above, *_ = shapes.get(row.name, (0,))
            shapes[row.name] = (above + rows, *others)
        for layer in range(self.num_layers):
            for name, shape in shapes.items():
                yield f"model.layers.{layer}.{name}", shape
        yield "model.norm.weight", (self.hidden_size,)
        if not self.tied_embeddings:
            yield "lm_head.weight", (self.vocab_size, self.hidden_size)

    def _layer_rows(self) -> Iterator[Row]:
        yield from self.layer_table.rows
        for expert in range(self.num_experts):
            for row in self.layer_table.expert_rows:
                yield row.of_expert(expert)


def read_architecture(path: str | Path) -> Architecture:
    """Read a model directory, or a `config.json` itself.

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
    mapped = str(config.get("model_type")) in FAMILIES
    if mapped:
        return architecture_from(config, str(file))
    return architecture_from(config, str(file), shapes_in(file.parent), file.parent)


def architecture_from(
    config: Mapping[str, Any],
    origin: str = "config",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    directory: Path | None = None,
) -> Architecture:
    """Turn the contents of a `config.json` into an `Architecture`.

    Args:
        config: the contents.
        origin: what error messages call them.
        shapes: shapes of the weights' tensors, for a family without a layer table.
        directory: the model's, for such a family.

    Raises:
        ModelError: the family is refused, a field is missing, or a variant is not supported.
    """
    family = config.get("model_type")
    if not isinstance(family, str):
        raise ModelError(
            f"{origin}: model_type = {family!r}; give the config.json of a Hugging Face model, "
            "whose model_type names its family"
        )
    if family not in FAMILIES:
        published = Published(config, shapes or {}, directory=directory)
        return _published(family, config, origin, published)
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
    for problem in _problems(fields):
        raise ModelError(f"{origin}: {problem}")
    rope = fields.rope
    moe = bool(FAMILIES[family].table.expert_rows)
    num_experts = fields.num_local_experts or fields.num_experts or 0
    if moe and not num_experts:
        raise ModelError(
            f"{origin}: {family} is a mixture of experts, and neither num_local_experts nor "
            "num_experts says how many; set it as the model's publisher does"
        )
    return Architecture(
        family=family,
        num_layers=fields.num_hidden_layers,
        hidden_size=fields.hidden_size,
        ffn_size=(fields.moe_intermediate_size if moe else None) or fields.intermediate_size,
        num_heads=fields.num_attention_heads,
        num_kv_heads=fields.num_kv_heads,
        head_size=fields.head_size,
        vocab_size=fields.vocab_size,
        tied_embeddings=bool(fields.tie_word_embeddings),
        norm_epsilon=fields.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        rope_scaling=_as_floats(rope) if rope.get("rope_type", "default") != "default" else None,
        max_positions=fields.max_position_embeddings,
        num_experts=num_experts if moe else 0,
        experts_per_token=_experts_per_token(fields, num_experts) if moe else 0,
        renormalise_router=not FAMILIES[family].norm_topk_prob or bool(fields.norm_topk_prob),
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
        "quantization_config": "quantised weights are not trained; convert them to bfloat16 with "
        "transformers first, and remove the field",
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
    sizes = sizes_of(config, origin)
    return Architecture(family, **sizes, published=published)


def _experts_per_token(fields: HfConfig, num_experts: int) -> int:
    default = FAMILIES[fields.model_type].defaults["num_experts_per_tok"]
    return min(fields.num_experts_per_tok or default, num_experts)


def _as_floats(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert integers to floats, since 8 and 8.0 are the same setting."""
    return {k: float(v) if type(v) is int else v for k, v in settings.items()}


def _problems(fields: HfConfig) -> Iterator[str]:
    """Name variants that would otherwise silently be computed wrongly."""
    family = FAMILIES[fields.model_type]
    has_bias = family.table.has("self_attn.q_proj.bias")
    refused = {
        "attention_bias": fields.attention_bias and not has_bias,
        "mlp_bias": fields.mlp_bias,
        "use_bias": fields.use_bias,
        "quantization_config": fields.quantization_config,
        "is_encoder_decoder": fields.is_encoder_decoder,
        "return_dict": fields.return_dict is False,
    }
    for field, present in refused.items():
        if present:
            yield f"{field} = {getattr(fields, field)!r} is not supported"
    for field, why in family.refused.items():
        if getattr(fields, field):
            yield f"{field} in a {fields.model_type} {why}"
    if fields.hidden_act != "silu":
        yield f"hidden_act = {fields.hidden_act!r}; only silu (SwiGLU) is supported"
    if fields.mlp_only_layers or fields.decoder_sparse_step not in (None, 1):
        yield "dense layers among mixture-of-experts layers are not mapped"
    yield from _problems_of_rotary(fields.rope)
    yield from _problems_of_windows(fields, family)


def _problems_of_rotary(rope: Mapping[str, Any]) -> Iterator[str]:
    for kind, value in rope.items():
        if isinstance(value, Mapping):
            yield (
                f"rope_parameters.{kind}: rotary settings by kind of layer are not supported; "
                "give all layers the same"
            )
    rope_type, known = rope.get("rope_type", "default"), ("default", *SCALED_ROPE)
    if rope_type not in known:
        yield f"rope_type = {rope_type!r} is not supported; supported are {', '.join(known)}"
    partial = rope.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        yield (
            f"partial_rotary_factor = {partial}; only whole heads are rotated here, as all "
            "supported models do"
        )


def _problems_of_windows(fields: HfConfig, family: Family) -> Iterator[str]:
    window, slides = fields.sliding_window, fields.use_sliding_window
    if slides is None:
        slides = family.defaults.get("use_sliding_window", False)
    positions = fields.max_position_embeddings
    if window and slides and window < positions:
        yield (
            f"sliding_window = {window} is below max_position_embeddings = {positions}; windowed "
            f"attention is not supported. If no sequence will be longer than {window}, set "
            f"max_position_embeddings to {window} in config.json"
        )
    known = {"full_attention"} | ({"sliding_attention"} if window and slides else set())
    for kind in fields.layer_types or ():
        if kind not in known:
            yield f"layer_types has {kind!r}; only full_attention is supported"
