"""distillation.*: a policy that follows a teacher on its own responses."""

from __future__ import annotations

from verl_hpc.migration.convert.actor import optimizer_steps
from verl_hpc.migration.convert.algorithm import put_mode
from verl_hpc.migration.convert.plain import refusal
from verl_hpc.migration.row import ACTOR, ROLLOUT, Draft, has_critic, has_reference, same
from verl_hpc.migration.table import known, note, rows
from verl_hpc.migration.values import Refused, Values

_LOSS = "distillation.distillation_loss"
_OURS = "distillation"
_ESTIMATOR = "algorithm.adv_estimator"
_GROUPS = "algorithm.filter_groups.enable"
_CLIPS = tuple(f"{_LOSS}.clip_ratio_{side}" for side in ("low", "high"))
_OF_SCORES = ("algorithm.advantage.", "algorithm.drop_equal_groups", "algorithm.loss.")
_OF_ADVANTAGES = ("algorithm.old_log_probs", "algorithm.correction.")
_OF_FORWARD = (f"{_OURS}.top_k", f"{_OURS}.min_log_prob")
"""Settings that decide nothing where nothing is scored, where a divergence is the loss, and where
none is."""


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
    rejects = "algorithm.rollout_correction.rollout_rs"
    if forward and values[rejects]:
        raise Refused(rejects, note("none_rejected"), f"{rejects}=null")
    _leave_out(values, draft, forward)
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
        for key in _CLIPS:
            draft.put(f"algorithm.loss.clip_{key.rpartition('_')[2]}", values[key], key)
        if optimizer_steps(values) > 1:
            draft.note(mode, note("before_the_step"))
    mode = f"{ACTOR}.loss_agg_mode"
    draft.notes.pop(mode, None)  # it was of the loss by advantages
    put_mode(values, draft, "algorithm.aggregation", mode)


def _leave_out(values: Values, draft: Draft, forward: bool) -> None:
    """Drop what another loss alone would read, and tell so of the keys that are given for it."""
    unread = _OF_SCORES + (_OF_ADVANTAGES if forward else _OF_FORWARD)
    draft.settings = {k: v for k, v in draft.settings.items() if not k.startswith(unread)}
    for row in rows():
        idle = row.ours and all(name.startswith(unread) for name in row.ours)
        if not idle or (row.key in _CLIPS and not forward):
            continue
        draft.notes.pop(row.key, None)
        is_given = row.key in values and not same(values[row.key], values.default(row.key))
        if is_given and row.key != _ESTIMATOR:  # which decides that there is no critic
            draft.note(row.key, note("idle_in_distillation"))
    if forward:  # it may be noted as what a correction needs
        computed = known(f"{ROLLOUT}.calculate_log_probs")
        computed.check(computed.key, values, draft)


def _check_alone(values: Values) -> None:
    """Raises: Refused: a term of the loss beside the teacher's, groups that are left out by their
    scores, or probabilities at another temperature than verl's teacher has."""
    if values.flag(f"{_LOSS}.use_task_rewards"):
        raise refusal(f"{_LOSS}.use_task_rewards", note("clipped_apart"))
    if values.flag(_GROUPS):
        raise Refused(_GROUPS, note("no_groups_dropped"), f"{_GROUPS}=false")
    terms = {
        _ESTIMATOR: has_critic(values),
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
