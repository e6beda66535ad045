"""*.optim.*: Adam and its learning rate, of the actor and of the critic."""

from __future__ import annotations

from typing import Any

from verl_hpc.migration.convert.plain import our_word, refusal
from verl_hpc.migration.models import ACTOR, CRITIC, has_critic
from verl_hpc.migration.row import Draft
from verl_hpc.migration.values import Refused, Values

_OURS = {ACTOR: "optimizer", CRITIC: "roles.critic.optimizer"}


def optimizers(values: Values, draft: Draft) -> None:
    """Optimizers of the actor and of the critic."""
    for model, ours in _OURS.items():
        if model == CRITIC and not has_critic(values):
            continue
        section = f"{model}.optim"
        found = _adam(values, model, section) | _schedule(values, draft, section)
        for name, (value, key) in found.items():
            draft.put(f"{ours}.{name}", value, key)


def _adam(values: Values, model: str, section: str) -> dict[str, tuple[Any, str]]:
    """Settings, and verl's key of each."""
    lr, decay, betas = (f"{section}.{name}" for name in ("lr", "weight_decay", "betas"))
    pair = values[betas]
    if not isinstance(pair, list) or len(pair) != 2:
        raise Refused(betas, "expected two numbers")
    clip, older = f"{section}.clip_grad", f"{model}.grad_clip"
    clip = older if older in values and clip not in values else clip
    settings = {
        "lr": (values[lr], lr),
        "weight_decay": (values[decay], decay),
        "beta1": (pair[0], betas),
        "beta2": (pair[1], betas),
        "clip_grad": (values[clip], clip),
    }
    override = f"{section}.override_optimizer_config"
    more = values.below(override)
    if "eps" in more:
        settings["epsilon"] = more.pop("eps"), override
    if more:
        raise Refused(override, f"there is no {next(iter(more))} here", "optimizer.epsilon")
    return settings


def _schedule(values: Values, draft: Draft, section: str) -> dict[str, tuple[Any, str]]:
    """Warm-up and decay, as `_adam`. verl counts steps of the trainer, we count optimizer steps."""
    each = optimizer_steps(values)
    settings: dict[str, tuple[Any, str]] = {"warmup_steps": _warmup(values, draft, section, each)}
    fsdp = values.form == "fsdp"
    style = f"{section}.{'lr_scheduler_type' if fsdp else 'lr_decay_style'}"
    older = f"{section}.warmup_style"
    if fsdp and values[older] is not None:
        style = older
    settings["schedule"] = our_word(values, style), style
    if fsdp:
        least = f"{section}.min_lr_ratio"
        share = 0.0 if values[least] is None else values.number(least)
        settings["min_lr"] = share * values.number(f"{section}.lr"), least
        return settings
    least, steps = f"{section}.min_lr", f"{section}.lr_decay_steps"
    settings["min_lr"] = values[least], least
    if values[steps] is not None:
        settings["decay_steps"] = values.whole(steps) * each, steps
        draft.note(steps, f"x {each} optimizer steps in a step of the trainer")
    return settings


def _warmup(values: Values, draft: Draft, section: str, each: int) -> tuple[int, str]:
    """verl's ratio is of the steps over which the learning rate decays, and counts where no steps
    are given, or none."""
    key, ratio = f"{section}.lr_warmup_steps", f"{section}.lr_warmup_steps_ratio"
    decay = f"{section}.lr_decay_steps"
    is_given = values.form == "megatron" and values[decay] is not None
    total = decay if is_given else "trainer.total_training_steps"
    if values[key] is not None and values.number(key) > 0:
        if each > 1:
            draft.note(key, f"x {each} optimizer steps in a step of the trainer")
        return values.whole(key) * each, key
    share = values.number(ratio)
    if not share:
        return 0, key
    if values[total] is None:
        why = "how many steps there are is known when the data are read"
        raise Refused(ratio, why, f"{total}, or {key}")
    return int(share * values.whole(total)) * each, ratio


def optimizer_steps(values: Values) -> int:
    """In a step of the trainer."""
    key = f"{ACTOR}.ppo_mini_batch_size"
    size, mini = values.whole("data.train_batch_size"), values.whole(key)
    if size % mini:
        raise refusal(key, f"{mini} does not divide data.train_batch_size = {size}")
    return size // mini * values.whole(f"{ACTOR}.ppo_epochs")
