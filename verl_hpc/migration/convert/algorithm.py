"""algorithm.* and the policy's loss: advantages, the KL divergence, corrections, aggregation."""

from __future__ import annotations

from typing import Any

from verl_hpc.algorithms import losses
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.config.algorithm import SCALED
from verl_hpc.migration.convert.plain import copied, our_word, refusal
from verl_hpc.migration.row import ACTOR, ROLLOUT, Draft
from verl_hpc.migration.table import note
from verl_hpc.migration.values import Refused, Values

_BY_STD = "algorithm.norm_adv_by_std_in_grpo"
_KL, _ADVANTAGE = "algorithm.kl", "algorithm.advantage"
_USUAL = {"reward": "k1", "loss": "k3"}
"""What null takes."""
_BIASED = {"loss": ("k1", "abs"), "reward": ("abs", "k2", "k3")}
_CORRECTION = "algorithm.rollout_correction"


def advantage(values: Values, draft: Draft) -> None:
    """The estimator of advantages, and its own settings."""
    key = "algorithm.adv_estimator"
    name = our_word(values, key)
    draft.put(f"{_ADVANTAGE}.name", name, key)
    if name == "optimal_token_baseline" and values[f"{_CORRECTION}.rollout_is"]:
        draft.note(key, note("unweighted_baseline"))
    if name == "gdpo":
        _components(values, draft)
    if values.word(key) in ("grpo", "grpo_passk"):
        draft.put(f"{_ADVANTAGE}.std", "group" if values.flag(_BY_STD) else "none", _BY_STD)
    elif not values.flag(_BY_STD):  # verl reads it for no other estimator
        raise refusal(_BY_STD, f"has no effect with {values.word(key)}; leave it out")


def _components(values: Values, draft: Draft) -> None:
    names, weights = (f"algorithm.gdpo_reward_{what}" for what in ("keys", "weights"))
    if not isinstance(values[names], list) or not values[names]:
        raise refusal(names, "gdpo needs a list of names")
    copied(values, draft, names, weights)


def divergence(values: Values, draft: Draft) -> None:
    """Where the KL divergence counts, and how it is estimated."""
    in_reward, in_loss = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
    if values.flag(in_reward) and values.flag(in_loss):
        raise refusal(in_reward, f"{in_loss} is true, too: the penalty has one place")
    if not values.flag(in_reward) and not values.flag(in_loss):
        draft.put(f"{_KL}.placement", "none", in_reward, in_loss)
        return
    placement = "reward" if values.flag(in_reward) else "loss"
    draft.put(f"{_KL}.placement", placement, in_reward, in_loss)
    kind = "algorithm.kl_penalty" if placement == "reward" else f"{ACTOR}.kl_loss_type"
    estimator = our_word(values, kind)
    draft.put(f"{_KL}.estimator", None if estimator == _USUAL[placement] else estimator, kind)
    if estimator in _BIASED[placement]:
        draft.put(f"{_KL}.allow_biased", True, kind)
        draft.note(kind, f"its gradient is not that of the KL divergence in the {placement}")
    control = "algorithm.kl_ctrl"
    weight = f"{control}.kl_coef" if placement == "reward" else f"{ACTOR}.kl_loss_coef"
    copied(values, draft, weight)
    if placement == "reward":
        copied(values, draft, f"{control}.type")
        if values[f"{control}.type"] == "adaptive":
            copied(values, draft, f"{control}.target_kl", f"{control}.horizon")


def groups(values: Values, draft: Draft) -> None:
    """Whether groups of equal scores are left out, and replaced by others."""
    section = "algorithm.filter_groups"
    if not values.flag(f"{section}.enable"):
        return
    metric = values[f"{section}.metric"]
    if metric not in (None, "score", "acc", "seq_reward", "seq_final_reward"):
        raise Refused(f"{section}.metric", "groups of equal scores are left out", "reward.function")
    if metric == "acc":
        draft.note(f"{section}.metric", "groups of equal scores, which a reward may make of acc")
    most = values.whole(f"{section}.max_num_gen_batches", least=0)
    draft.put("algorithm.drop_equal_groups", True, f"{section}.enable")
    draft.put("batch.refill_rounds", most - 1 if most else 1000, f"{section}.max_num_gen_batches")
    if not most:
        draft.note(f"{section}.enable", "no bound on rounds in verl; here 1000 at most")


def correction(values: Values, draft: Draft) -> None:
    """Weights and rejections by the ratio of the trainer to the rollout."""
    key, reject = f"{_CORRECTION}.rollout_is", values[f"{_CORRECTION}.rollout_rs"]
    bypass = f"{_CORRECTION}.bypass_mode"
    weights = None if values.flag(bypass) else our_word(values, key)
    if values.flag(bypass):
        if reject:
            raise Refused(f"{_CORRECTION}.rollout_rs", note("all_kept"), f"{bypass}=false")
        mode = f"{ACTOR}.policy_loss.loss_mode"
        if values[mode] != "vanilla" and not values["trainer.use_v1"]:
            near = f"{mode}=vanilla, or trainer.use_v1=true"
            raise Refused(mode, note("vanilla_alone", value=values[mode]), near)
        draft.put("algorithm.old_log_probs", "rollout", bypass)
        if values[key]:
            draft.note(key, "verl only logs weights with bypass_mode")
    ours, computed = "algorithm.correction", f"{ROLLOUT}.calculate_log_probs"
    if (weights or reject) and not values[computed]:
        draft.note(computed, note("uncorrected"))
    if weights:
        draft.put(f"{ours}.weights", weights, key)
        key = f"{_CORRECTION}.rollout_is_threshold"
        lower, upper = _bounds(key, values[key])
        draft.put(f"{ours}.upper", upper, key)
        if lower is not None:
            draft.put(f"{ours}.outside", "leave_out", key)
            draft.put(f"{ours}.lower", lower, key)
            draft.note(key, note("left_out"))
        normalise = f"{_CORRECTION}.rollout_is_batch_normalize"
        draft.put(f"{ours}.normalise", values.flag(normalise), normalise)
    if reject:
        _reject(values, draft, ours, weights is None)


def _reject(values: Values, draft: Draft, ours: str, alone: bool) -> None:
    key, bounds = f"{_CORRECTION}.rollout_rs", f"{_CORRECTION}.rollout_rs_threshold"
    ratio = our_word(values, key)
    if values[bounds] is None:
        raise Refused(bounds, f"is needed with {key}", f"{ours}.reject")
    lower, upper = _bounds(bounds, values[bounds])
    if upper <= 0 or (lower is not None and lower <= 0):
        raise Refused(bounds, "expected bounds above 0", f"{ours}.reject")
    if alone:
        draft.put(f"{ours}.weights", "none", key)
    draft.put(f"{ours}.reject.ratio", ratio, key)
    # verl bounds the inverse ratio, engine over trainer (verl PR 6377).
    draft.put(f"{ours}.reject.lower", 1.0 / upper, bounds)
    draft.put(f"{ours}.reject.upper", upper if lower is None else 1.0 / lower, bounds)
    draft.note(key, note("left_out"))


def _bounds(key: str, value: Any) -> tuple[float | None, float]:
    """verl writes both as LOWER_UPPER, and an upper one alone as a number."""
    parts = str(value).split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise Refused(key, "expected UPPER, or LOWER_UPPER", "algorithm.correction")
    return (None, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


_CLIPPED = ("ppo_clip", "gspo", "gmpo", "cispo", "clip_cov")
_OF_SEQUENCES = ("gspo", "gmpo", "sapo")
"""Losses that verl aggregates in their own way, whatever loss_agg_mode says."""
_DIFFERENCES = {"clip_cov": "whole_step", "kl_cov": "whole_step", "gmpo": "micro_batches"}
"""Notes of losses that differ from verl's."""
_POLICY = f"{ACTOR}.policy_loss"
_LOSS = "algorithm.loss"


def loss(values: Values, draft: Draft) -> None:
    """The policy's loss, its bounds, and how it is aggregated."""
    mode = values.word(f"{_POLICY}.loss_mode")
    name = our_word(values, f"{_POLICY}.loss_mode")
    draft.put(f"{_LOSS}.name", name, f"{_POLICY}.loss_mode")
    low, high = _clips(values)
    if name in _CLIPPED:
        if name != "gmpo" and type(low) in (int, float) and low > 1:
            draft.note(f"{ACTOR}.clip_ratio_low", "1 is as good: no ratio is below 0")
            low = 1.0
        draft.put(f"{_LOSS}.clip_low", low, f"{ACTOR}.clip_ratio_low")
        draft.put(f"{_LOSS}.clip_high", high, f"{ACTOR}.clip_ratio_high")
    if name == "dppo":
        draft.put(f"{_LOSS}.divergence", mode.removeprefix("dppo_"), f"{_POLICY}.loss_mode")
        if low != high:
            raise Refused(f"{ACTOR}.clip_ratio_low", "dppo has one threshold", f"{_LOSS}.threshold")
        draft.put(f"{_LOSS}.threshold", low, f"{ACTOR}.clip_ratio")
    if name == "dro" and values[f"{_POLICY}.dro_beta"] is None:
        raise Refused(f"{_POLICY}.dro_beta", "is needed with dro", f"{_LOSS}.beta")
    if name in _DIFFERENCES:
        draft.note(f"{_POLICY}.loss_mode", note(_DIFFERENCES[name]))
    _aggregation(values, draft, name, mode)
    sides = (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")
    if f"{ACTOR}.clip_ratio" in values and any(side not in values for side in sides):
        draft.note(f"{ACTOR}.clip_ratio", note("one_side", value=values.default(sides[0])))


def _aggregation(values: Values, draft: Draft, name: str, mode: str) -> None:
    """verl sums some losses over sequences whatever loss_agg_mode says, which is then that of the
    KL divergence and the entropy alone."""
    key, own = f"{ACTOR}.loss_agg_mode", members(losses, PolicyLoss)[name].aggregation
    is_replaced = f"{_LOSS}.name" in values.own
    if values.text(key) == own and not is_replaced:
        # The critic's loss is token-mean unless all are given another one.
        draft.put("algorithm.aggregation", None if own == "token-mean" else own, key)
    elif is_replaced and key not in values:
        return  # verl's default is not for a loss of ours
    elif name not in _OF_SEQUENCES or is_replaced:
        put_mode(values, draft, "algorithm.aggregation", key)
    elif values["algorithm.adv_estimator"] == "gae" and values[key] != "token-mean":
        why = note("critics_terms", value=values[key], mode=mode, own=own)
        raise Refused(key, why, f"{key}={own}")
    else:
        if name == "gspo":
            draft.note(f"{_POLICY}.loss_mode", note("gspo"))
        if values.flag(f"{ACTOR}.use_kl_loss") or values[f"{ACTOR}.entropy_coeff"]:
            put_mode(values, draft, "algorithm.penalty_aggregation", key)
        elif key in values and name != "gspo":
            draft.note(key, f"verl sums {mode} by {own} whatever it says, and so it is here")


def put_mode(values: Values, draft: Draft, ours: str, key: str) -> None:
    """How a term of the loss is summed, by verl's word for it."""
    draft.put(ours, values[key], key)
    is_scaled = values[key] == SCALED and values[f"{ACTOR}.loss_scale_factor"] is None
    if is_scaled and values["trainer.use_v1"]:
        draft.note(key, note("longest_response"))


def _clips(values: Values) -> tuple[Any, Any]:
    """clip_ratio is that of a side that is not given."""
    both = f"{ACTOR}.clip_ratio"
    sides = (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")
    low, high = (
        values[both] if side not in values or values[side] is None else values[side]
        for side in sides
    )
    return low, high
