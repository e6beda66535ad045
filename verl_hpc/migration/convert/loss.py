"""The policy's loss: clips, single losses' own settings, and how tokens are aggregated."""

from __future__ import annotations

from typing import Any

from verl_hpc.algorithms import losses
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.config.algorithm import SCALED
from verl_hpc.migration.convert.plain import our_word
from verl_hpc.migration.models import ACTOR
from verl_hpc.migration.row import Draft
from verl_hpc.migration.table import note
from verl_hpc.migration.values import Refused, Values

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
        draft.put("algorithm.aggregation", values[key], key)
        is_scaled = values[key] == SCALED and values[f"{ACTOR}.loss_scale_factor"] is None
        if is_scaled and values["trainer.use_v1"]:
            draft.note(key, note("longest_response"))
    elif values.flag(f"{ACTOR}.use_kl_loss") or values[f"{ACTOR}.entropy_coeff"]:
        whose = "" if key in values else " (verl's default)"
        why = note("terms_alike", value=f"{values[key]}{whose}", mode=mode, own=own)
        raise Refused(key, why, f"{key}={own}")
    elif values["algorithm.adv_estimator"] == "gae" and values[key] != "token-mean":
        why = note("critics_terms", value=values[key], mode=mode, own=own)
        raise Refused(key, why, f"{key}={own}")
    elif name == "gspo":
        draft.note(f"{_POLICY}.loss_mode", note("gspo"))
    elif key in values:
        draft.note(key, f"verl sums {mode} by {own} whatever it says, and so it is here")


def _clips(values: Values) -> tuple[Any, Any]:
    """clip_ratio is that of a side that is not given."""
    both = f"{ACTOR}.clip_ratio"
    sides = (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")
    low, high = (
        values[both] if side not in values or values[side] is None else values[side]
        for side in sides
    )
    return low, high
