"""actor_rollout_ref.model.* and critic.model.*: weights, tokenizer and adapters."""

from __future__ import annotations

from typing import Any

from verl_hpc.migration.models import has_critic
from verl_hpc.migration.row import NONE, Draft, Row, all_fixed, any_value, fixed, refused, together
from verl_hpc.migration.values import Refused, Values

_MODEL = "actor_rollout_ref.model"
_LINEAR = {
    "linear_qkv": ["q_proj", "k_proj", "v_proj"],
    "linear_proj": ["o_proj"],
    "linear_fc1": ["gate_proj", "up_proj"],
    "linear_fc2": ["down_proj"],
}
"""What Megatron's fused layers are in a checkpoint."""
_ADAPTERS = {
    False: ("lora_rank", "lora_alpha", "target_modules", "lora_adapter_path"),
    True: ("lora.rank", "lora.alpha", "lora.target_modules", "lora.adapter_path"),
}
"""Keys of adapters, by whether they are of the Megatron form."""
_OF_ADAPTERS = (
    "dropout exclude_modules dropout_position lora_A_init_method lora_B_init_method "
    "a2a_experimental dtype freeze_vision_model freeze_vision_projection freeze_language_model"
)
_KERNELS = "the training engine chooses its kernels"
_NAMES = "or ORG/NAME on a hub, once `fetch` has brought it"
_SCALE, _FP8 = "model.router.z_loss", "model.fp8"
_OVERRIDES = "actor_rollout_ref.actor.megatron.override_transformer_config"


def _path(values: Values, draft: Draft) -> None:
    path, tokenizer = f"{_MODEL}.path", f"{_MODEL}.tokenizer_path"
    if path not in values:
        raise Refused(path, "is needed and not given; verl's default is a model of its authors")
    draft.put("model.path", values.path(path), path)
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
    chosen = values[key]
    if not isinstance(chosen, list):
        return chosen
    if values.form == "megatron" and set(chosen) == set(_LINEAR):
        return "all-linear"
    return [part for name in chosen for part in _LINEAR.get(name, [name])]


def _lora(values: Values, draft: Draft) -> None:
    _adapters(values, draft, _MODEL, "lora")
    if not has_critic(values):
        return
    _check_adapters_form(values, "critic.model")
    rank = "lora.rank" if values.form == "megatron" else "lora_rank"
    if values[f"critic.model.{rank}"]:
        _adapters(values, draft, "critic.model", "roles.critic.lora")
    elif values[f"{_MODEL}.{rank}"]:
        draft.put("roles.critic.lora", "none", f"critic.model.{rank}")


def _fp8(values: Values, draft: Draft) -> None:
    given = values.below(_OVERRIDES)
    if given.get("fp8") is None:
        if given.get("fp8_recipe") is not None:
            raise Refused(f"{_OVERRIDES}.fp8_recipe", "needs fp8", _FP8)
        return
    draft.put(f"{_FP8}.format", given["fp8"], f"{_OVERRIDES}.fp8")
    draft.put(f"{_FP8}.recipe", given.get("fp8_recipe", "delayed"), f"{_OVERRIDES}.fp8_recipe")


def _router(values: Values, draft: Draft) -> None:
    given = values.below(_OVERRIDES)
    weight = given.get("moe_aux_loss_coeff")
    if weight and given.get("moe_router_load_balancing_type") != "seq_aux_loss":
        raise Refused(
            f"{_OVERRIDES}.moe_aux_loss_coeff",
            "experts are evened out in each sequence: moe_router_load_balancing_type=seq_aux_loss",
            "model.router.seq_aux_loss",
        )
    if weight:
        key = f"{_OVERRIDES}.moe_aux_loss_coeff"
        draft.put("model.router.seq_aux_loss", weight, key)
    if given.get("moe_z_loss_coeff"):
        draft.put(_SCALE, given["moe_z_loss_coeff"], f"{_OVERRIDES}.moe_z_loss_coeff")


def _rows(section: str, ours: str) -> list[Row]:
    target = f"{ours}.target_modules"
    return [
        *together(
            _lora,
            {
                f"{section}.lora_rank": (f"{ours}.rank", "0 trains all weights"),
                f"{section}.lora_alpha": (f"{ours}.alpha", ""),
                f"{section}.target_modules": (target, ""),
                f"{section}.lora_adapter_path": (f"{ours}.path", ""),
                f"{section}.lora.rank": (f"{ours}.rank", "of the Megatron form"),
                f"{section}.lora.alpha": (f"{ours}.alpha", "of the Megatron form"),
                f"{section}.lora.target_modules": (target, "fused layers become their parts"),
                f"{section}.lora.adapter_path": (f"{ours}.path", "of the Megatron form"),
            },
        ),
        fixed(f"{section}.exclude_modules", "name those that have adapters", target),
        fixed(f"{section}.lora.type", "adapters are LoRA's", ours),
        fixed(f"{section}.lora.merge", "the rollout always has merged weights", ours, also=(True,)),
        *all_fixed(
            " ".join(f"{section}.lora.{name}" for name in _OF_ADAPTERS.split()),
            "adapters have a rank, alpha and modules",
            ours,
        ),
        fixed(f"{section}.hf_config_path", "config.json is the model's own", "model.path"),
        fixed(f"{section}.use_shm", "files are read where they are", "model.path in /dev/shm"),
        fixed(f"{section}.trust_remote_code", "code of a model's directory is never run", NONE),
        fixed(f"{section}.custom_chat_template", "it is the tokenizer's", "model.tokenizer"),
        fixed(f"{section}.external_lib", "no module is imported by name", "reward.function"),
        fixed(f"{section}.override_config", "config.json says what the model is", "model.path"),
        fixed(f"{section}.override_config.*", "config.json says what the model is", "model.path"),
        *any_value(f"{section}.use_remove_padding", "batches travel unpadded"),
        *any_value(f"{section}.use_fused_kernels", _KERNELS),
        *all_fixed(
            f"{section}.fused_kernel_options.impl_backend {section}.tiled_mlp.enabled "
            f"{section}.tiled_mlp.num_shards",
            _KERNELS,
            "parallel.fsdp.kernels",
        ),
        fixed(f"{section}.mtp.*", "layers that predict several tokens are not supported", NONE),
    ]


ROWS: list[Row] = [
    *together(
        _path,
        {
            f"{_MODEL}.path": ("model.path", f"~ is the home directory; {_NAMES}"),
            f"{_MODEL}.tokenizer_path": ("model.tokenizer", _NAMES),
            "data.tokenizer": ("model.tokenizer", _NAMES),
        },
    ),
    fixed("critic.model.tokenizer_path", "all roles have the actor's", "model.tokenizer"),
    *_rows(_MODEL, "lora"),
    *_rows("critic.model", "roles.critic.lora"),
    *together(
        _fp8,
        {
            f"{_OVERRIDES}.fp8": (f"{_FP8}.format", "with +"),
            f"{_OVERRIDES}.fp8_recipe": (f"{_FP8}.recipe", "with +"),
        },
    ),
    *together(
        _router,
        {
            f"{_OVERRIDES}.moe_aux_loss_coeff": ("model.router.seq_aux_loss", "with +"),
            f"{_OVERRIDES}.moe_router_load_balancing_type": (
                "model.router.seq_aux_loss",
                "seq_aux_loss alone",
            ),
            f"{_OVERRIDES}.moe_z_loss_coeff": (_SCALE, "with +"),
        },
    ),
    refused(
        f"{_MODEL}.enable_thinking",
        "verl reads it nowhere",
        "data.chat_template_kwargs.enable_thinking",
    ),
]
