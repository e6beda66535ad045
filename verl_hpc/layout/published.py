"""Models of families without a layer table: sizes and tensors as their own files give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from verl_hpc.errors import ModelError
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.shard_map import TensorSpec

_SIZES: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "vocab_size": ("vocab_size",),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "max_positions": (
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "seq_length",
        "max_seq_len",
        "model_max_length",
    ),
}
"""Fields of `config.json` that say a size, in the words of different families. Recurrent layers
have no heads, and models whose positions are not learned may say no limit."""
_NEEDED = ("num_layers", "hidden_size", "vocab_size")
_LEFT_OUT: Mapping[str, Mapping[str, int]] = {
    "gemma3": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    }
}
"""Sizes that publishers of a family leave out of `config.json`, as transformers takes them."""
_WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "intermediate_size_mlp")

LAYER = re.compile(r"(?!(?:model\.)?vis)[^0-9]*\.(\d+)\.")
"""Begins the name of a tensor of a layer: `model.layers.3.`, `transformer.h.3.`; not of a vision
tower's, which are gathered with what is in no layer."""


@dataclass(frozen=True, eq=False)
class Published:
    """What a model's files say of it; compared by identity, as it holds a whole `config.json`.

    Args:
        config: contents of `config.json`.
        shapes: shape of every tensor of the weights, by its name in the files; empty where the
            files are not at hand.
        buffers: names of tensors that are no parameters, such as the bias of a router: no
            optimizer changes them, and no engine rounds them.
        frozen: names of parameters that are not trained, which have no state of an optimizer.
        directory: the model's, which has the processor of its images.
        linears: shapes of the weights of all linear layers but the output layer and a vision
            tower's, by their names in transformers' model; None where that was not built.
    """

    config: Mapping[str, Any] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    buffers: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    directory: Path | None = None
    linears: Mapping[str, tuple[int, ...]] | None = field(default=None, repr=False)

    @property
    def adaptable(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the weights that may have adapters: `linears`, or else all matrices in layers
        of its files but routers, of which some may be no linear layer.

        transformers computes all experts in one product. PEFT (0.21) takes layers that are named as
        theirs are for experts, so that these have no adapters either.
        """
        weights = self.linears
        if weights is None:
            matrices = {n: s for n, s in self.shapes.items() if len(s) == 2 and LAYER.match(n)}
            weights = {n: s for n, s in matrices.items() if n.endswith(".weight")}
            weights = {n: s for n, s in weights.items() if last_part(n) not in ("gate", "router")}
        experts = {last_part(name) for name in self.shapes if ".experts." in name}
        if "gate_up_proj" in experts:
            experts |= {"gate_proj", "up_proj"}
        return {name: shape for name, shape in weights.items() if last_part(name) not in experts}


def last_part(weight: str) -> str:
    """Name of a weight's layer in the module that has it: q_proj."""
    return weight.removesuffix(".weight").rpartition(".")[2]


def shapes_of(tensors: Mapping[str, TensorSpec]) -> dict[str, tuple[int, ...]]:
    return {name: spec.shape for name, spec in tensors.items()}


def shapes_in(directory: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a directory's safetensors files; empty if it has none."""
    if not any(directory.glob("*.safetensors")):
        return {}
    return shapes_of(safetensors_shard_map(directory).tensors)


def listed_shapes(config: Mapping[str, Any], origin: str) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors that a file of sizes lists as `tensors`: `{24}` in a name is each of 0
    to 23. A publisher's `config.json` lists none.

    Raises:
        ModelError: it lists something else.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in section_of(config, "tensors", origin).items():
        before, brace, rest = name.partition("{")
        count, _, after = rest.partition("}")
        is_shape = isinstance(shape, list) and all(map(_is_size, shape))
        if not is_shape or (brace and not count.isdecimal()):
            raise ModelError(
                f"{origin}: tensors: {name!r} = {shape!r}: give a list of positive integers, and "
                "the number of its layers between the braces of a name"
            )
        names = [f"{before}{i}{after}" for i in range(int(count))] if brace else [name]
        shapes |= dict.fromkeys(names, tuple(shape))
    return shapes


def section_of(config: Mapping[str, Any], name: str, origin: str) -> Mapping[str, Any]:
    """A section of a `config.json`, empty where it is not given.

    Raises:
        ModelError: it is something else than a section.
    """
    section = config.get(name)
    if not isinstance(section, Mapping | None):
        raise ModelError(
            f"{origin}: {name} = {section!r}: not a section of names and values; give the "
            "config.json that the model's publisher wrote"
        )
    return section or {}


def size_in(
    config: Mapping[str, Any], name: str, origin: str, default: int | None = None, least: int = 1
) -> int:
    """A size, or `default` where it is not given.

    Raises:
        ModelError: it is no integer of at least `least`, or is not given and has no default.
    """
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not _is_size(value, least):
        raise ModelError(
            f"{origin}: {name} = {value!r}: not an integer of at least {least}; give the "
            "config.json that the model's publisher wrote"
        )
    return value


def sizes_of(config: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return arguments of `Architecture` that any family's `config.json` gives.

    `ffn_size` is the width that a token goes through: in a mixture, that of all its experts.

    Raises:
        ModelError: a size that every model has is not given, or one is no integer.
    """
    dtype = config.get("dtype") or config.get("torch_dtype")
    left_out = _LEFT_OUT.get(str(config.get("model_type")), {})
    config = {**left_out, **config, **section_of(config, "text_config", origin)}
    sizes: dict[str, Any] = {
        size: next((config[name] for name in names if _is_size(config.get(name))), None)
        for size, names in _SIZES.items()
    }
    if sizes["num_layers"] is None:  # a list or a string of kinds, one a layer
        kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern") or ""
        sizes["num_layers"] = len(kinds) if isinstance(kinds, list | str) and kinds else None
    missing = [" or ".join(_SIZES[size]) for size in _NEEDED if sizes[size] is None]
    if missing:
        raise ModelError(
            f"{origin}: {', '.join(missing)}: not given as a positive integer; models whose sizes "
            "have other names, or are in a section of config.json, are not trained here"
        )
    widths = [config[name] for name in _WIDTHS if _is_size(config.get(name))]
    of_mlp = 0
    if config.get("num_local_experts"):
        of_mlp = size_in(config, "intermediate_size", origin, 0)
    of_expert = size_in(config, "moe_intermediate_size", origin, of_mlp, least=0)
    width = max([*widths, of_expert * size_in(config, "num_experts_per_tok", origin, 0, least=0)])
    heads = sizes["num_heads"] or 1
    return sizes | {
        "ffn_size": width or 4 * sizes["hidden_size"],
        "num_heads": heads,
        "num_kv_heads": size_in(config, "num_key_value_heads", origin, heads),
        "head_size": size_in(config, "head_dim", origin, sizes["hidden_size"] // heads),
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "dtype": dtype or config.get("dtype") or config.get("torch_dtype") or "float32",
    }


def _is_size(value: object, least: int = 1) -> TypeGuard[int]:
    return type(value) is int and value >= least
