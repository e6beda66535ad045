"""Build a language model as its `config.json` says, by transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from verl_hpc.errors import ModelError
from verl_hpc.hf.sparse import choose_earliest
from verl_hpc.hf.stored import places_of, stored_views
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import HEAD_TENSORS, Head
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.layout.shard_map import TensorSpec

_CLASSES = {"kimi_k2": "deepseek_v3"}
"""Families that another one's class computes."""


def published_config(arch: Architecture) -> PreTrainedConfig:
    """Return transformers' settings for a model as its `config.json` has them, without dropout.

    Raises:
        ModelError: transformers does not know the family, or refuses a setting.
    """
    assert arch.published is not None, arch.family
    try:
        config = settings_of(arch.published.config)
    except Exception as error:  # every class of settings checks them in its own way
        raise _refused(arch, error) from error
    return without_dropout(config)


def settings_of(config: Mapping[str, Any]) -> PreTrainedConfig:
    """Return transformers' settings for a `config.json`, whose publisher's code is not run."""
    family = config.get("model_type")
    fields = {name: value for name, value in config.items() if name != "auto_map"}
    with TemporaryDirectory() as directory:
        text = json.dumps(fields | {"model_type": _CLASSES.get(str(family), family)})
        Path(directory, "config.json").write_text(text, encoding="utf-8")
        return AutoConfig.from_pretrained(directory, trust_remote_code=False)


_DRAWN = re.compile("drop(out|$)|jitter")


def without_dropout(config: PreTrainedConfig) -> PreTrainedConfig:
    """Set what a model draws in training to nothing: dropout of elements or of whole layers, and a
    router's noise; also in the settings of its parts."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            without_dropout(value)
        elif _DRAWN.search(name) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def class_name(family: str) -> str | None:
    """Return the name of transformers' class of a family, as vLLM has it too."""
    with_images: str | None = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(family)
    name: str | None = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)
    return with_images if family in WITH_IMAGES else name


def build_language_model(arch: Architecture, dtype: torch.dtype) -> PreTrainedModel:
    """Build a model of a family without a layer table, with transformers' random weights.

    Its attention is PyTorch's, or the family's own where that would lose a soft cap of the scores.
    Parameters that the family does not train, such as the bias of a router, become buffers as they
    are in others, and buffers that its files have stay in float32.

    Raises:
        ModelError: transformers cannot build it.
    """
    config = published_config(arch)
    both_ways = arch.family in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if both_ways and not getattr(config, "is_decoder", False):
        raise ModelError(
            f"model_type = {arch.family!r}: it reads to the right too, and only models that read "
            "to the left are trained"
        )
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    build = AutoModelForImageTextToText if arch.family in WITH_IMAGES else AutoModelForCausalLM
    try:
        model: PreTrainedModel = build.from_config(
            config, dtype=dtype, attn_implementation="eager" if capped else None
        )
    except Exception as error:  # every class of models checks its settings in its own way
        raise _refused(arch, error) from error
    choose_earliest(model)
    model.get_input_embeddings().padding_idx = None  # or that token's row would not be trained
    for name, parameter in list(model.named_parameters()):
        parameter.data = parameter.data.to(dtype)  # a family may ask for another type of some
        if not parameter.requires_grad:
            module, own = _owner(model, name)
            delattr(module, own)
            # Without memory as a parameter; a buffer is filled from the files in any case.
            module.register_buffer(own, torch.zeros_like(parameter, device="cpu"))
    for name, buffer in stored_buffers(model).items():
        if not buffer.is_floating_point():
            raise ModelError(
                f"model_type = {arch.family!r}: {name} of its files has whole numbers; models of "
                "this family are not trained here"
            )
        module, own = _owner(model, name)
        setattr(module, own, buffer.float())
    return model


def _owner(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """Return the module that has a parameter or buffer, and its name there."""
    parent, _, own = name.rpartition(".")
    return model.get_submodule(parent), own


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Put parameters of modules that are built inside this context on the meta device.

    Buffers have memory and their values: on the meta device they would be lost, and transformers
    computes not all of them anew.
    """
    register = torch.nn.Module.register_parameter

    def on_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # or tied ones would part
            data, trains = parameter.detach().to("meta"), parameter.requires_grad
            parameter = torch.nn.Parameter(data, requires_grad=trains)
        register(module, name, parameter)

    with patch.object(torch.nn.Module, "register_parameter", on_meta):
        yield


def _refused(arch: Architecture, error: Exception) -> ModelError:
    return ModelError(
        f"model_type = {arch.family!r}: transformers cannot build it: "
        f"{type(error).__name__}: {error}"
    )


def stored_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that a checkpoint has, by name."""
    buffers = dict(module.named_buffers())
    return {name: buffers[name] for name in module.state_dict() if name in buffers}


def tower_parameters(model: PreTrainedModel) -> set[str]:
    """Return the names of parameters that read images: all that are neither of the decoder nor of
    the output layer."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    of_text = {id(p) for part in parts if part is not None for p in part.parameters()}
    return {name for name, p in model.named_parameters() if id(p) not in of_text}


def resolved(
    arch: Architecture, head: Head = "language_model", frozen_tower: bool = False
) -> Architecture:
    """Return an architecture with the tensors that transformers' model has, if its family has no
    layer table; its files may have more, such as layers for speculation.

    Args:
        arch: as its files are.
        head: the output layer. Files of a critic or a reward model have no language model's.
        frozen_tower: leave what reads images as it is (model.vision_tower).

    Raises:
        ModelError: transformers cannot build the model, or the files lack a tensor, or have one of
            another shape.
    """
    if arch.published is None:
        return arch
    with parameters_without_memory():
        model = build_language_model(arch, torch.float32)
    views, there = stored_views(model, arch.published.shapes), arch.published.shapes
    missing = {name for name in views if name not in there}
    output = model.get_output_embeddings()
    if head in HEAD_TENSORS and output is not None:
        replaced = _storages(output) - _storages(model.get_input_embeddings())  # unless tied
        missing -= {n for n, v in views.items() if v.untyped_storage()._cdata in replaced}
    if missing:
        raise ModelError(
            f"model_type = {arch.family!r}: the model has {len(missing)} tensors that are not in "
            f"its files, first {min(missing)}; is the download whole, and is tie_word_embeddings "
            "right?"
        )
    for name, view in views.items():
        if there.get(name, view.shape) != tuple(view.shape):
            raise ModelError(
                f"model_type = {arch.family!r}: tensor {name} has shape {list(there[name])} in the "
                f"files; config.json calls for {list(view.shape)}"
            )
    specs = {name: TensorSpec(tuple(view.shape)) for name, view in views.items() if name in there}
    places = places_of(model, views)
    exact = frozenset(name for name, place in places.items() if not place.num_rows)
    tower = tower_parameters(model) if frozen_tower else set()
    frozen = frozenset(name for name, place in places.items() if place.view.name in tower)
    return arch.with_shapes(specs, exact & specs.keys(), frozen, _linears(model))


def _linears(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of all linear layers but the output layer and what reads
    images; subclasses may compute something else, as Llama 4's router does."""
    output, tower = model.get_output_embeddings(), tower_parameters(model)
    named = {
        f"{name}.weight": tuple(module.weight.shape)
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and module is not output
    }
    # Mamba's kernels read the weight of out_proj without the layer; PEFT refuses to adapt it.
    state = {name for name, module in model.named_modules() if hasattr(module, "ssm_state_size")}
    apart = tower | {f"{name}.out_proj.weight" for name in state}
    return {name: shape for name, shape in named.items() if name not in apart}


def _storages(layer: torch.nn.Module) -> set[int]:
    return {parameter.untyped_storage()._cdata for parameter in layer.parameters()}
