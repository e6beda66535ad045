"""How each model is cut and kept: Megatron's sizes, FSDP's Ulysses, recomputation and offload;
`engine` says which engine trains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from verl_hpc.config.model import OffloadConfig, ParallelConfig
from verl_hpc.migration.convert.engine import engine_of, has_own_choice
from verl_hpc.migration.convert.plain import our_word, word_for
from verl_hpc.migration.models import ACTOR, CRITIC, FSDP, MODEL, REF, ROLE, is_there
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import Draft, same
from verl_hpc.migration.table import rows
from verl_hpc.migration.values import Values

_OFFLOAD = {
    "parameters": "param_offload",
    "gradients": "grad_offload",
    "optimizer": "optimizer_offload",
}
_OF_FSDP = ("enable_gradient_checkpointing", "enable_activation_offload", "use_liger")


def _parallel(values: Values, model: str) -> dict[str, Any]:
    """Our section parallel of one of verl's models."""
    if values.form == "fsdp":
        sizes = {"context_parallel": _ulysses(values, model)}
        if model != REF and values.flag(f"{MODEL[model]}.enable_gradient_checkpointing"):
            sizes["recompute"] = "full"
            if values.flag(f"{MODEL[model]}.enable_activation_offload"):
                sizes["offload_activations"] = True
        return sizes
    keys = _megatron_keys(model)
    sizes = {name: values[key] for name, key in keys.items() if key.endswith("_size")}
    if sizes["expert_tensor_parallel"] is None:  # as Megatron-core takes it
        experts = sizes["expert_parallel"] not in (None, 1)
        sizes["expert_tensor_parallel"] = sizes["tensor_parallel"] if experts else 1
    sizes = {name: 1 if size is None else size for name, size in sizes.items()}
    if sizes["tensor_parallel"] != 1:
        sizes["sequence_parallel"] = values.flag(keys["sequence_parallel"])
    return sizes if model == REF else sizes | _recompute(values, keys)


def _ulysses(values: Values, model: str) -> Any:
    keys = [f"{model}.ulysses_sequence_parallel_size"]
    keys.append(f"{FSDP[model]}.ulysses_sequence_parallel_size")
    return next((values[key] for key in keys if key in values), values[keys[0]])


@cache
def _megatron_keys(model: str) -> dict[str, str]:
    """Keys of the Megatron form by our setting of the section parallel."""
    prefix, section = f"{ROLE[model]}parallel.", f"{model}.megatron."
    keys = (row for row in rows() if row.key.startswith(section) and row.by == "layout.layout")
    return {row.ours[0].removeprefix(prefix): row.key for row in keys}


def _recompute(values: Values, keys: Mapping[str, str]) -> dict[str, Any]:
    granularity = our_word(values, keys["recompute"])
    if granularity is None:
        return {}
    if granularity == "selective":
        return {"recompute": granularity, "recompute_modules": values[keys["recompute_modules"]]}
    found = {name: values[keys[name]] for name in ("recompute_method", "recompute_num_layers")}
    return {"recompute": granularity} | {n: v for n, v in found.items() if v is not None}


def _note_keys_of_fsdp(values: Values, draft: Draft, model: str) -> None:
    """Note the keys that verl's Megatron form does not read."""
    for name in _OF_FSDP:
        key = f"{MODEL[model]}.{name}"
        if key in values and not same(values[key], values.default(key)):
            draft.note(key, "decides nothing: it is read in the FSDP form alone")


def layout(values: Values, draft: Draft) -> None:
    """Sections `parallel` of the models."""
    if values.form == "megatron":
        for model in (ACTOR, CRITIC):
            _note_keys_of_fsdp(values, draft, model)
    sections = {model: _parallel(values, model) for model in ROLE if is_there(values, model)}
    for model, section in sections.items():
        shared = sections[ACTOR]
        if model == REF and not has_own_choice(values, REF) and not _differs(section, shared):
            continue  # it computes in the actor's engine
        section |= engine_of(values, draft, model, section)
        default = {name: field.default for name, field in ParallelConfig.model_fields.items()}
        own = default | section != default | shared
        if model in (ACTOR, REF) or own:
            for name, value in section.items():
                setting = f"{ROLE[model]}parallel.{name}"
                draft.put(setting, value, *_origins(values, setting))


def _origins(values: Values, setting: str) -> tuple[str, ...]:
    """verl's keys that a setting is read from: the first that is given, or all of this form."""
    keys = _keys_of(setting)
    given = [key for key in keys if key in values]
    return tuple(given[:1] or (key for key in keys if key in reference().forms[values.form]))


@cache
def _keys_of(setting: str) -> tuple[str, ...]:
    return tuple(row.key for row in rows() if setting in row.ours)


def _differs(section: Mapping[str, Any], shared: Mapping[str, Any]) -> bool:
    """Whether the reference, which recomputes nothing, is cut otherwise than the actor."""
    return any(section[name] != shared.get(name) for name in section)


def offload(values: Values, draft: Draft) -> None:
    """Sections `offload` of the models."""
    shared: dict[str, bool] = {}
    for model in (ACTOR, CRITIC):
        if not is_there(values, model):
            continue
        section = FSDP[model] if values.form == "fsdp" else f"{model}.megatron"
        offloaded = {
            ours: values.flag(f"{section}.{theirs}")
            for ours, theirs in _OFFLOAD.items()
            if not (ours == "gradients" and values.form == "fsdp")
        }
        if model == ACTOR or OffloadConfig(**offloaded) != OffloadConfig(**shared):
            for name, value in offloaded.items():
                draft.put(f"{ROLE[model]}offload.{name}", value, f"{section}.{_OFFLOAD[name]}")
        shared = shared or offloaded


def dtype(values: Values, draft: Draft) -> None:
    """Set the element type of parameters and activations."""
    shared = None
    for model in ROLE:
        if not is_there(values, model):
            continue
        key = f"{FSDP[model] if values.form == 'fsdp' else f'{model}.megatron'}.dtype"
        mixed = values.below(f"{FSDP[model]}.mixed_precision")
        dtype = word_for(key, mixed.get("param_dtype", values[key]))
        if model == ACTOR:
            shared = dtype
            draft.put("model.dtype", dtype, key)
        elif dtype != shared:
            draft.put(f"{ROLE[model]}dtype", dtype, key)
