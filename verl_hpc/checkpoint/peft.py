"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

Tensors are named `base_model.model.<logical name>`, as in PEFT 0.21.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from verl_hpc.checkpoint.run_state import AdapterState
from verl_hpc.config.lora import LoraConfig
from verl_hpc.errors import ModelError
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.safetensors import read_header, safetensors_shard_map
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.transfer.files import Reader, SafetensorsReader

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
_NOT_READ = {
    "use_dora": "computes another product (DoRA)",
    "use_rslora": "divides alpha by the root of the rank (rsLoRA)",
    "fan_in_fan_out": "is of transposed weights",
    "lora_bias": "trains a bias",
    "rank_pattern": "gives layers ranks of their own",
    "alpha_pattern": "gives layers alphas of their own",
    "layer_replication": "repeats layers",
    "layers_to_transform": "leaves layers out",
    "exclude_modules": "leaves layers out",
    "trainable_token_indices": "trains tokens' embeddings",
    "target_parameters": "adapts stacked parameters",
    "alora_invocation_tokens": "adapts what follows certain tokens alone (aLoRA)",
}
"""Unsupported settings of PEFT, with their meaning: all that is not A and B of one rank in every
layer."""
_SAME_BASE = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` with which PEFT leaves the model's own weights as they are."""


def open_adapter(
    lora: LoraConfig, wanted: Mapping[str, TensorSpec], head: str | None
) -> tuple[ShardMap, Reader]:
    """Open the adapter that `lora.path` names.

    Args:
        lora: settings with a path.
        wanted: logical tensors of the adapters to load.
        head: further logical tensor that the adapter may have.

    Returns:
        The map of the stored tensors, by logical name, and their reader.

    Raises:
        ModelError: it is missing, or does not match the configuration.
    """
    assert lora.path is not None
    directory = Path(lora.path)
    if not (directory / CONFIG).is_file():
        raise ModelError(
            f"lora.path = {directory}: no {CONFIG} there; give a directory that PEFT's "
            "save_pretrained or `verl_hpc export` wrote"
        )
    config = read_json_object(directory / CONFIG)
    file = directory / TENSORS
    if not file.is_file():
        raise ModelError(f"lora.path: no {file}; save the adapter with safe_serialization=True")
    stored = safetensors_shard_map(directory)
    names = read_header(file)
    specs: dict[str, TensorSpec] = {}
    regions = []
    for region in stored.regions:
        name = region.tensor.removeprefix(PREFIX)
        if region.tensor in names:
            specs[name] = stored.tensors[region.tensor]
            regions.append(Region(name, region.box, region.holders, region.view))
    for problem in _problems(config, lora, specs, wanted, head):
        raise ModelError(f"lora.path = {directory}: {problem}")
    return ShardMap(specs, regions), SafetensorsReader()


def _problems(
    config: Mapping[str, Any],
    lora: LoraConfig,
    stored: Mapping[str, TensorSpec],
    wanted: Mapping[str, TensorSpec],
    head: str | None,
) -> Iterator[str]:
    """Say how an adapter differs from the configuration."""
    if config.get("peft_type") != "LORA":
        yield f"{CONFIG}: peft_type = {config.get('peft_type')}, not LORA"
    for name, meaning in _NOT_READ.items():
        if config.get(name):
            yield f"{CONFIG}: {name} = {config[name]!r} {meaning}, which is not supported"
    if (init := config.get("init_lora_weights")) not in _SAME_BASE:
        yield (
            f"{CONFIG}: init_lora_weights = {init!r} changes the model's own weights where PEFT "
            "loads it, which is not supported; save it with path_initial_model_for_weight_"
            "conversion, as PEFT's manual says, which makes an adapter of the model as it is"
        )
    if config.get("bias", "none") != "none":
        yield f"{CONFIG}: bias = {config['bias']!r}; only none is supported"
    for ours, theirs in (("rank", "r"), ("alpha", "lora_alpha")):
        if config.get(theirs) != getattr(lora, ours):
            yield (
                f"lora.{ours} = {getattr(lora, ours)}, and {CONFIG} has {theirs} = "
                f"{config.get(theirs)}; make them equal"
            )
    missing = [name for name in wanted if name not in stored]
    more = [name for name in stored if name not in wanted and name != head]
    for names, what in ((missing, "does not have"), (more, "has, besides what is wanted,")):
        if names:
            yield (
                f"{TENSORS} {what} {names[0]} (and {len(names) - 1} more); is lora.target_modules "
                "that of the adapter, and model.path its base?"
            )
    for name, spec in wanted.items():
        if stored[name].shape != spec.shape:
            yield (
                f"{TENSORS}: {name} has shape {list(stored[name].shape)}, and model.path calls for "
                f"{list(spec.shape)}"
            )


def write_adapter(
    out: Path,
    tensors: Mapping[str, torch.Tensor],
    state: AdapterState,
    head: str | None,
    by_last_part: bool = True,
) -> None:
    """Write an adapter that PEFT loads.

    Args:
        out: existing directory.
        tensors: tensors by logical name.
        state: base, rank and alpha of all adapters.
        head: logical tensor among them that replaces the base's output layer.
        by_last_part: name the target modules by the last part of their names; otherwise by their
            whole names, where others without adapters, as in a vision tower, may end alike.
    """
    modules = {name.split(".lora_")[0] for name in tensors if name != head}
    if by_last_part:
        modules = {name.rpartition(".")[2] for name in modules}
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if head else "CAUSAL_LM",
        "base_model_name_or_path": state.base,
        "r": state.rank,
        "lora_alpha": state.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "modules_to_save": [head.removesuffix(".weight")] if head else None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
    (out / CONFIG).write_text(json.dumps(config, indent=2))
    named = {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}
    save_file(named, out / TENSORS, metadata={"format": "pt"})
