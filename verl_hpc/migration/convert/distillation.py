"""distillation.*: a policy that follows a teacher on its own responses."""

from __future__ import annotations

from verl_hpc.migration.convert.actor import optimizer_steps
from verl_hpc.migration.convert.plain import refusal
from verl_hpc.migration.row import ACTOR, Draft, has_critic, has_reference
from verl_hpc.migration.table import note
from verl_hpc.migration.values import Refused, Values

_LOSS = "distillation.distillation_loss"
_OURS = "distillation"
_OF_SCORES = ("algorithm.advantage.", "algorithm.drop_equal_groups", "algorithm.loss.")
_OF_ADVANTAGES = ("algorithm.old_log_probs", "algorithm.correction.")
"""Settings that decide nothing where nothing is scored, and where a divergence is the loss."""


def distillation(values: Values, draft: Draft) -> None:
    """The teacher, and the loss by it. Read last: what scores alone would decide is left out."""
    switch = "distillation.enabled"
    if not values.flag(switch):
        return
    _check_alone(values)
    mode, by_policy = f"{_LOSS}.loss_mode", values.flag(f"{_LOSS}.use_policy_gradient")
    forward = values[mode] == "forward_kl_topk"
    if by_policy == forward or not (forward or values[mode] in ("k1", "kl")):
        raise refusal(mode, note("distillation_modes"))
    unread = _OF_SCORES + _OF_ADVANTAGES * forward
    draft.settings = {k: v for k, v in draft.settings.items() if not k.startswith(unread)}
    draft.put("recipe", "distillation", switch)
    _put_teacher(values, draft)
    draft.put(f"{_OURS}.name", "forward_kl" if forward else "reverse_kl", mode)
    draft.put(f"{_OURS}.clamp", values[f"{_LOSS}.loss_max_clamp"], f"{_LOSS}.loss_max_clamp")
    if forward:
        draft.put(f"{_OURS}.rest", False, mode)
        draft.put(f"{_OURS}.top_k", values.whole(f"{_LOSS}.topk"), f"{_LOSS}.topk")
        least = f"{_LOSS}.log_prob_min_clamp"
        draft.put(f"{_OURS}.min_log_prob", values[least], least)
    else:
        for side in ("low", "high"):
            key = f"{_LOSS}.clip_ratio_{side}"
            draft.put(f"algorithm.loss.clip_{side}", values[key], key)
        if optimizer_steps(values) > 1:
            draft.note(mode, note("before_the_step"))
    mode = f"{ACTOR}.loss_agg_mode"
    draft.put("algorithm.aggregation", values[mode], mode)


def _check_alone(values: Values) -> None:
    """Raises: Refused: a term of the loss beside the teacher's, or probabilities at another
    temperature than verl's teacher has."""
    if values.flag(f"{_LOSS}.use_task_rewards"):
        raise refusal(f"{_LOSS}.use_task_rewards", note("clipped_apart"))
    terms = {
        "algorithm.adv_estimator": has_critic(values),
        f"{ACTOR}.use_kl_loss": has_reference(values),
        f"{ACTOR}.entropy_coeff": bool(values[f"{ACTOR}.entropy_coeff"]),
    }
    for key in (key for key, counts in terms.items() if counts):
        raise Refused(key, note("no_other_term"), f"{key} without it")
    if values["actor_rollout_ref.rollout.temperature"] != 1:
        raise Refused("actor_rollout_ref.rollout.temperature", note("teachers_temperature"), "1")


def _put_teacher(values: Values, draft: Draft) -> None:
    teachers = values.below("distillation.teacher_models")
    paths = [name for name in teachers if name.endswith(".model_path") and teachers[name]]
    if len(paths) != 1:
        raise Refused("distillation.teacher_models", note("one_teacher"), "roles.teacher")
    key = f"distillation.teacher_models.{paths[0]}"
    draft.put("roles.teacher.path", values.path(key), key)
