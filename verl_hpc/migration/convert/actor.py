"""actor_rollout_ref.actor.*, .ref.* and critic.*: batches, the critic, and what is saved."""

from __future__ import annotations

from verl_hpc.migration.convert.optimizer import optimizer_steps
from verl_hpc.migration.convert.plain import refusal
from verl_hpc.migration.models import ACTOR, CRITIC, REF, ROLLOUT, has_critic
from verl_hpc.migration.row import Draft, same
from verl_hpc.migration.table import known
from verl_hpc.migration.values import Values


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
