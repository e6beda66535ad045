"""How each model is cut and kept: Megatron's sizes, FSDP's Ulysses, recomputation and offload;
`engine` says which engine trains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from verl_hpc.config.model import OffloadConfig, ParallelConfig
from verl_hpc.migration.convert.engine import engine_of, has_own_choice
from verl_hpc.migration.convert.plain import word_for
from verl_hpc.migration.models import ACTOR, CRITIC, FSDP, MODEL, REF, ROLE, is_there
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import Draft, same
from verl_hpc.migration.table import rows
from verl_hpc.migration.values import Refused, Values

_SIZES = {
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
    "expert_tensor_parallel_size": "expert_tensor_parallel",
}
_OFFLOAD = {
    "param_offload": "parameters",
    "grad_offload": "gradients",
    "optimizer_offload": "optimizer",
}
_THEIRS = {ours: theirs for theirs, ours in _OFFLOAD.items()}
_OF_FSDP = ("enable_gradient_checkpointing", "enable_activation_offload", "use_liger")
_RECOMPUTE = ("granularity", "method", "num_layers", "modules")


def _parallel(values: Values, model: str) -> dict[str, Any]:
    """Our section parallel of one of verl's models."""
    if values.form == "fsdp":
        found = {"context_parallel": _ulysses(values, model)}
        if model != REF and values.flag(f"{MODEL[model]}.enable_gradient_checkpointing"):
            found["recompute"] = "full"
            if values.flag(f"{MODEL[model]}.enable_activation_offload"):
                found["offload_activations"] = True
        return found
    section = f"{model}.megatron"
    found = {ours: values[f"{section}.{theirs}"] for theirs, ours in _SIZES.items()}
    if found["expert_tensor_parallel"] is None:  # as Megatron-core takes it
        experts = found["expert_parallel"] not in (None, 1)
        found["expert_tensor_parallel"] = found["tensor_parallel"] if experts else 1
    found = {name: 1 if size is None else size for name, size in found.items()}
    if found["tensor_parallel"] != 1:
        found["sequence_parallel"] = values.flag(f"{section}.sequence_parallel")
    return found if model == REF else found | _recompute(values, section)


def _ulysses(values: Values, model: str) -> Any:
    keys = [f"{model}.ulysses_sequence_parallel_size"]
    keys.append(f"{FSDP[model]}.ulysses_sequence_parallel_size")
    return next((values[key] for key in keys if key in values), values[keys[0]])


def _recompute(values: Values, section: str) -> dict[str, Any]:
    given = {n: f"{section}.override_transformer_config.recompute_{n}" for n in _RECOMPUTE}
    granularity = values[given["granularity"]]
    if granularity not in (None, "full", "selective"):
        raise Refused(
            given["granularity"], "expected full, selective or null", "parallel.recompute"
        )
    if granularity is None:
        return {}
    found: dict[str, Any] = {"recompute": granularity}
    if granularity == "selective":
        return found | {"recompute_modules": values[given["modules"]]}
    for name in ("method", "num_layers"):
        if values[given[name]] is not None:
            found[f"recompute_{name}"] = values[given[name]]
    return found


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
        found = {
            ours: values.flag(f"{section}.{theirs}")
            for theirs, ours in _OFFLOAD.items()
            if not (theirs == "grad_offload" and values.form == "fsdp")
        }
        if model == ACTOR or OffloadConfig(**found) != OffloadConfig(**shared):
            for name, value in found.items():
                draft.put(f"{ROLE[model]}offload.{name}", value, f"{section}.{_THEIRS[name]}")
        shared = shared or found


def dtype(values: Values, draft: Draft) -> None:
    """Set the element type of parameters and activations."""
    shared = None
    for model in ROLE:
        if not is_there(values, model):
            continue
        key = f"{FSDP[model] if values.form == 'fsdp' else f'{model}.megatron'}.dtype"
        mixed = values.below(f"{FSDP[model]}.mixed_precision")
        found = word_for(key, mixed.get("param_dtype", values[key]))
        if model == ACTOR:
            shared = found
            draft.put("model.dtype", found, key)
        elif found != shared:
            draft.put(f"{ROLE[model]}dtype", found, key)
