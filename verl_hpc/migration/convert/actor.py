"""actor_rollout_ref.actor.*, .ref.* and critic.*: batches, optimizers, and the critic."""

from __future__ import annotations

from typing import Any

from verl_hpc.migration.convert.layout import is_for_fsdp_alone
from verl_hpc.migration.convert.plain import our_word, refusal
from verl_hpc.migration.row import ACTOR, CRITIC, REF, ROLLOUT, Draft, has_critic, same
from verl_hpc.migration.table import known, note
from verl_hpc.migration.values import Refused, Values


def batch(values: Values, draft: Draft) -> None:
    """Mini-batches of a step, and their order."""
    steps, epochs = optimizer_steps(values), values.whole(f"{ACTOR}.ppo_epochs")
    draft.put("batch.mini_batches", steps // epochs, f"{ACTOR}.ppo_mini_batch_size")
    draft.put("batch.update_epochs", epochs, f"{ACTOR}.ppo_epochs")
    key = f"{ACTOR}.shuffle"
    mode = "samples" if values.flag(key) else "none"
    draft.put("batch.shuffle_mini_batches", mode, key)


_LIMITS = (
    *((ACTOR, "", "ppo"), (CRITIC, "", "ppo"), (CRITIC, "", "forward")),
    *((section, "log_prob_", "log_prob") for section in (REF, ROLLOUT)),
)
"""Sections with limits on micro-batches, and how the names of a switch and of its limits begin."""


def micro_batches(values: Values, draft: Draft) -> None:
    """One limit here: the smallest of verl's, in tokens."""
    longest = sum(values.whole(f"{ROLLOUT}.{name}_length") for name in ("prompt", "response"))
    limits: dict[str, int] = {}
    for section, dynamic, name in _LIMITS:
        if section == CRITIC and not has_critic(values):
            continue
        tokens, samples = f"{name}_max_token_len_per_gpu", f"{name}_micro_batch_size_per_gpu"
        if values.flag(f"{section}.{dynamic}use_dynamic_bsz"):
            limits[f"{section}.{tokens}"] = values.whole(f"{section}.{tokens}")
        elif values[f"{section}.{samples}"] is not None:
            limits[f"{section}.{samples}"] = values.whole(f"{section}.{samples}") * longest
    if not limits:
        return
    ranks = values[f"{ACTOR}.ulysses_sequence_parallel_size"]
    if values.form == "megatron":
        ranks = values[f"{ACTOR}.megatron.context_parallel_size"]
    if is_for_fsdp_alone(values, ACTOR):
        ranks = 1
    key = min(limits, key=limits.__getitem__)
    switches = dict.fromkeys(
        f"{section}.{dynamic}use_dynamic_bsz" for section, dynamic, _ in _LIMITS
    )
    draft.put("batch.max_tokens_per_micro_batch", limits[key] * (ranks or 1), *limits, *switches)
    for other in limits:
        if other in values:
            draft.note(other, "the smallest of all such limits counts, in tokens of a micro-batch")


def critic_alone(values: Values, draft: Draft) -> None:
    """Steps that train the critic alone."""
    row = known("trainer.critic_warmup")
    if has_critic(values):
        first = values.whole(row.key, least=0)
        draft.put("critic.warmup_steps", max(first - 1, 0), row.key)
        if first:
            draft.note(row.key, f"verl trains the actor from step {first} on")
    elif row.key in values and values[row.key] != values.default(row.key):
        raise refusal(row.key, row.otherwise)


def critic(values: Values, draft: Draft) -> None:
    """Whether there is a critic, its weights, and what it shares with the actor."""
    key = "critic.enable"
    if values[key] is not None and not same(values[key], has_critic(values)):
        raise refusal(key, "adv_estimator: gae has a critic, others have none")
    if has_critic(values):
        path = "critic.model.path"
        if path in values and values[path] != values["actor_rollout_ref.model.path"]:
            draft.put("roles.critic.path", values.path(path), path)


_OPTIMIZERS = {ACTOR: "optimizer", CRITIC: "roles.critic.optimizer"}


def optimizers(values: Values, draft: Draft) -> None:
    """Optimizers of the actor and of the critic."""
    for model, ours in _OPTIMIZERS.items():
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
    given = values.below(override)
    more = {name: v for name, v in given.items() if known(f"{override}.{name}").fate != "any"}
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
        if (own := f"{section}.lr_min") in values:
            settings["min_lr"] = values.number(own), own
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
        raise Refused(ratio, note("steps_unknown"), f"{total}, or {key}")
    return int(share * values.whole(total)) * each, ratio


def optimizer_steps(values: Values) -> int:
    """In a step of the trainer."""
    key = f"{ACTOR}.ppo_mini_batch_size"
    size, mini = values.whole("data.train_batch_size"), values.whole(key)
    if size % mini:
        raise refusal(key, f"{mini} does not divide data.train_batch_size = {size}")
    return size // mini * values.whole(f"{ACTOR}.ppo_epochs")
