"""A run that follows a teacher: what decides nothing there is told, and what verl does is refused
where we do not."""

import pytest

from tests.unit.migration.cases import ACTOR, CASES, CORRECTION, ROLLOUT
from tests.unit.migration.cases import BASE as NEEDED
from verl_hpc.migration.translate import translate
from verl_hpc.migration.words import Overrides

LOSS = "distillation.distillation_loss"
REVERSE, FORWARD = (
    next(case.beside for case in CASES if case.key == f"{LOSS}.{name}")
    for name in ("clip_ratio_low", "topk")
)
GSPO, AGGREGATION = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"
GROUPS = "algorithm.filter_groups.enable"


def translated(*givens):
    given = dict(NEEDED)
    for one in givens:
        given |= one
    return translate(Overrides(given, "fsdp"))


@pytest.mark.parametrize(
    ("base", "key", "value"),
    [
        (FORWARD, f"{CORRECTION}.rollout_is", "token"),
        (FORWARD, f"{LOSS}.clip_ratio_low", 0.1),
        (REVERSE, f"{LOSS}.log_prob_min_clamp", -5.0),
        (REVERSE, f"{LOSS}.topk", 8),
        (REVERSE, "algorithm.norm_adv_by_std_in_grpo", False),
        (REVERSE, GSPO, "gspo"),
        (REVERSE, f"{ACTOR}.clip_ratio", 0.1),
    ],
)
def test_what_decides_nothing_with_distillation_is_told(base, key, value):
    found, without = translated(base, {key: value}), translated(base)
    assert found.config() == without.config()
    assert found.notes == without.notes | {key: "decides nothing with distillation"}


@pytest.mark.parametrize(
    ("base", "given"),
    [
        (REVERSE, {GROUPS: True}),
        (
            FORWARD,
            {f"{CORRECTION}.rollout_rs": "seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold": 2.0},
        ),
    ],
)
def test_what_verl_leaves_out_of_a_teachers_loss_is_refused(base, given):
    found = translated(base, given)
    assert [one.key for one in found.refused] == [next(iter(given))]
    assert next(iter(given)) not in found.notes


def test_the_teachers_term_is_summed_as_loss_agg_mode_says_whatever_the_loss_is():
    given = {GSPO: "sapo", AGGREGATION: "seq-mean-token-sum-norm"}
    found = translated(REVERSE, given)
    assert found.config().algorithm.aggregation == given[AGGREGATION]
    assert found.notes[AGGREGATION].startswith("without loss_scale_factor verl")


def test_a_divergence_needs_no_log_probs_of_the_rollout():
    found = translated(
        FORWARD, {f"{CORRECTION}.rollout_is": "token", f"{ROLLOUT}.calculate_log_probs": False}
    )
    text = "changes no number: log-probs are always computed"
    assert found.notes[f"{ROLLOUT}.calculate_log_probs"] == text
