"""actor_rollout_ref.model.* and critic.model.*: weights, tokenizer and adapters."""

from __future__ import annotations

from typing import Any

from verl_hpc.migration.convert.plain import refusal
from verl_hpc.migration.models import model_at
from verl_hpc.migration.row import ACTOR, MODEL, Draft, has_critic
from verl_hpc.migration.table import known, note
from verl_hpc.migration.values import Refused, Values

_ADAPTERS = {
    False: ("lora_rank", "lora_alpha", "target_modules", "lora_adapter_path"),
    True: ("lora.rank", "lora.alpha", "lora.target_modules", "lora.adapter_path"),
}
"""Keys of adapters, by whether they are of the Megatron form."""
_OVERRIDES = f"{ACTOR}.megatron.override_transformer_config"


def path(values: Values, draft: Draft) -> None:
    """The model, and its tokenizer."""
    path, tokenizer = f"{MODEL[ACTOR]}.path", f"{MODEL[ACTOR]}.tokenizer_path"
    if path not in values:
        raise Refused(path, "is needed and not given; verl's default is a model of its authors")
    draft.put("model.path", values.path(path), path)
    if problem := model_at(values.path(path))[1]:
        raise Refused(path, f"{problem}; see docs/models.md")
    own = tokenizer if values[tokenizer] is not None else "data.tokenizer"
    if values[own] is not None:
        draft.put("model.tokenizer", values.path(own), own)


def _adapters(values: Values, draft: Draft, section: str, ours: str) -> None:
    megatron = values.form == "megatron"
    rank, alpha, targets, path = (f"{section}.{name}" for name in _ADAPTERS[megatron])
    _check_adapters_form(values, section)
    if not values.whole(rank, least=0):
        if values[path] is not None:
            raise Refused(path, f"needs {rank}", "lora.rank")
        return
    draft.put(f"{ours}.rank", values[rank], rank)
    draft.put(f"{ours}.alpha", float(values.number(alpha)), alpha)
    if megatron:
        start = known(f"{section}.lora.lora_A_init_method")
        draft.note(start.key, start.says)
    draft.put(f"{ours}.target_modules", _targets(values, targets), targets)
    if values[path] is not None:
        draft.put(f"{ours}.path", values.path(path), path)


def _check_adapters_form(values: Values, section: str) -> None:
    """Raises: Refused: a key is of the form that this run does not have."""
    megatron = values.form == "megatron"
    for name in _ADAPTERS[not megatron]:
        key = f"{section}.{name}"
        if key in values and values[key] != values.default(key):
            other = "FSDP" if megatron else "Megatron"
            near = f"{section}.{_ADAPTERS[megatron][0]}"
            raise Refused(key, f"verl reads it in the {other} form", near)


def _targets(values: Values, key: str) -> Any:
    chosen, fused = values[key], known(f"{MODEL[ACTOR]}.lora.target_modules").words
    if not isinstance(chosen, list):
        return chosen
    if values.form == "megatron" and set(chosen) == set(fused):
        return "all-linear"
    return [part for name in chosen for part in fused.get(name, [name])]


def lora(values: Values, draft: Draft) -> None:
    """Adapters of the actor and of the critic."""
    _adapters(values, draft, MODEL[ACTOR], "lora")
    if not has_critic(values):
        return
    _check_adapters_form(values, "critic.model")
    rank = "lora.rank" if values.form == "megatron" else "lora_rank"
    if values[f"critic.model.{rank}"]:
        _adapters(values, draft, "critic.model", "roles.critic.lora")
    elif values[f"{MODEL[ACTOR]}.{rank}"]:
        draft.put("roles.critic.lora", "none", f"critic.model.{rank}")


def fp8(values: Values, draft: Draft) -> None:
    """The format of FP8."""
    given = values.below(_OVERRIDES)
    if given.get("fp8") is None:
        if given.get("fp8_recipe") is not None:
            raise Refused(f"{_OVERRIDES}.fp8_recipe", "needs fp8", "model.fp8")
        return
    draft.put("model.fp8.format", given["fp8"], f"{_OVERRIDES}.fp8")
    draft.put("model.fp8.recipe", given.get("fp8_recipe", "delayed"), f"{_OVERRIDES}.fp8_recipe")


def router(values: Values, draft: Draft) -> None:
    """Losses and biases of the router of experts."""
    given, key = values.below(_OVERRIDES), f"{_OVERRIDES}.moe_aux_loss_coeff"
    weight = given.get("moe_aux_loss_coeff")
    if weight and given.get("moe_router_load_balancing_type") != "seq_aux_loss":
        raise refusal(key, note("in_each_sequence"))
    if weight:
        draft.put("model.router.seq_aux_loss", weight, key)
    if given.get("moe_z_loss_coeff"):
        draft.put(
            "model.router.z_loss", given["moe_z_loss_coeff"], f"{_OVERRIDES}.moe_z_loss_coeff"
        )
    rate = f"{_OVERRIDES}.moe_router_bias_update_rate"
    if given.get("moe_router_bias_update_rate"):
        draft.put("model.router.bias_update_rate", values.number(rate), rate)
