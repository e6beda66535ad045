"""*.optim.*: Adam and its learning rate, of the actor and of the critic."""

from __future__ import annotations

from typing import Any

from verl_hpc.migration.models import ACTOR, CRITIC, has_critic
from verl_hpc.migration.row import Draft, Row, all_fixed, fixed, together
from verl_hpc.migration.values import Refused, Values

_OURS = {ACTOR: "optimizer", CRITIC: "roles.critic.optimizer"}
_ADAM = "Adam with decoupled weight decay is the optimizer"
_STYLES = ("constant", "linear", "cosine")


def _optimizers(values: Values, draft: Draft) -> None:
    for model, ours in _OURS.items():
        if model == CRITIC and not has_critic(values):
            continue
        section = f"{model}.optim"
        for name, value in _adam(values, model, section).items():
            draft.put(f"{ours}.{name}", value, section)
        for name, value in _schedule(values, draft, section).items():
            draft.put(f"{ours}.{name}", value, section)


def _adam(values: Values, model: str, section: str) -> dict[str, Any]:
    betas = values[f"{section}.betas"]
    if not isinstance(betas, list) or len(betas) != 2:
        raise Refused(f"{section}.betas", "expected two numbers")
    clip, older = f"{section}.clip_grad", f"{model}.grad_clip"
    found = {
        "lr": values[f"{section}.lr"],
        "weight_decay": values[f"{section}.weight_decay"],
        "beta1": betas[0],
        "beta2": betas[1],
        "clip_grad": values[older if older in values and clip not in values else clip],
    }
    override = f"{section}.override_optimizer_config"
    more = values.below(override)
    if "eps" in more:
        found["epsilon"] = more.pop("eps")
    if more:
        raise Refused(override, f"there is no {next(iter(more))} here", "optimizer.epsilon")
    return found


def _schedule(values: Values, draft: Draft, section: str) -> dict[str, Any]:
    """Warm-up and decay. verl counts steps of the trainer, we count optimizer steps."""
    each = optimizer_steps(values)
    found: dict[str, Any] = {"warmup_steps": _warmup(values, draft, section, each)}
    fsdp = values.form == "fsdp"
    style = f"{section}.{'lr_scheduler_type' if fsdp else 'lr_decay_style'}"
    older = f"{section}.warmup_style"
    if fsdp and values[older] is not None:
        style = older
    if values[style] not in _STYLES:
        raise Refused(style, f"expected one of {', '.join(_STYLES)}", "optimizer.schedule")
    found["schedule"] = values[style]
    least = values[f"{section}.min_lr"] if not fsdp else None
    if fsdp:
        ratio = f"{section}.min_lr_ratio"
        share = 0.0 if values[ratio] is None else values.number(ratio)
        least = share * values.number(f"{section}.lr")
    found["min_lr"] = least
    steps = f"{section}.{'total_training_steps' if fsdp else 'lr_decay_steps'}"
    if values[steps] not in (None, -1):
        found["decay_steps"] = values.whole(steps) * each
        draft.note(steps, f"x {each} optimizer steps in a step of the trainer")
    return found


def _warmup(values: Values, draft: Draft, section: str, each: int) -> int:
    key, ratio, total = (
        f"{section}.lr_warmup_steps",
        f"{section}.lr_warmup_steps_ratio",
        "trainer.total_training_steps",
    )
    steps = values[key]
    if steps is not None and values.number(key) >= 0:
        if steps and each > 1:
            draft.note(key, f"x {each} optimizer steps in a step of the trainer")
        return values.whole(key, least=0) * each
    share = values.number(ratio)
    if not share:
        return 0
    if values[total] is None:
        why = "how many steps there are is known when the data are read"
        raise Refused(ratio, why, f"{total}, or {key}")
    return int(share * values.whole(total)) * each


def optimizer_steps(values: Values) -> int:
    """In a step of the trainer."""
    size, mini = (
        values.whole("data.train_batch_size"),
        values.whole(f"{ACTOR}.ppo_mini_batch_size"),
    )
    if size % mini:
        raise Refused(
            f"{ACTOR}.ppo_mini_batch_size",
            f"{mini} does not divide data.train_batch_size = {size}",
            "batch.mini_batches",
        )
    return size // mini * values.whole(f"{ACTOR}.ppo_epochs")


def _rows(model: str) -> list[Row]:
    section, ours = f"{model}.optim", _OURS[model]
    counts = "optimizer steps: times the mini-batches and epochs of a step"
    rows = {
        f"{section}.lr": (f"{ours}.lr", ""),
        f"{section}.weight_decay": (f"{ours}.weight_decay", ""),
        f"{section}.betas": (f"{ours}.beta1 {ours}.beta2", ""),
        f"{section}.clip_grad": (f"{ours}.clip_grad", ""),
        f"{model}.grad_clip": (f"{ours}.clip_grad", "unless optim.clip_grad is given"),
        f"{section}.override_optimizer_config": (f"{ours}.epsilon", "eps alone"),
        f"{section}.lr_warmup_steps": (f"{ours}.warmup_steps", counts),
        f"{section}.lr_warmup_steps_ratio": (
            f"{ours}.warmup_steps",
            "needs trainer.total_training_steps",
        ),
        f"{section}.lr_scheduler_type": (f"{ours}.schedule", ""),
        f"{section}.warmup_style": (f"{ours}.schedule", "an older name of lr_scheduler_type"),
        f"{section}.lr_decay_style": (f"{ours}.schedule", "constant, linear and cosine"),
        f"{section}.min_lr_ratio": (f"{ours}.min_lr", "times lr"),
        f"{section}.min_lr": (f"{ours}.min_lr", ""),
        f"{section}.total_training_steps": (f"{ours}.decay_steps", f"{counts}; -1 is the run's"),
        f"{section}.lr_decay_steps": (f"{ours}.decay_steps", counts),
    }
    other = "use_precision_aware_optimizer main_grads_dtype exp_avg_dtype exp_avg_sq_dtype"
    wsd = (
        "lr_wsd_decay_style lr_wsd_decay_steps weight_decay_incr_style lr_warmup_init num_cycles "
        "zero_indexed_step"
    )
    return [
        *together(_optimizers, rows),
        *together(_optimizers, {f"{section}.override_optimizer_config.*": (f"{ours}.epsilon", "")}),
        fixed(f"{section}.optimizer", _ADAM, ours, also=("AdamW", "adam", "adamw", "Adam")),
        fixed(f"{section}.optimizer_impl", _ADAM, ours),
        fixed(
            f"{section}.use_checkpoint_opt_param_scheduler",
            "a resumed run's schedule is that of its configuration, from the step that it is at",
            f"{ours}.schedule",
        ),
        *all_fixed(
            " ".join(f"{section}.{name}" for name in wsd.split()),
            "the schedules are constant, linear and cosine, after a linear warm-up from 0",
            f"{ours}.schedule",
        ),
        *all_fixed(
            " ".join(f"{section}.{name}" for name in other.split()),
            "gradients and Adam's moments are float32",
            "offload.optimizer",
        ),
        fixed(f"{section}.use_layer_wise_distributed_optimizer", _ADAM, ours),
        fixed(f"{section}.muon_*", _ADAM, ours),
    ]


ROWS = [*_rows(ACTOR), *_rows(CRITIC)]
