"""The algorithms against what verl 0.9.1's own functions made of the same arrays (`record.py`)."""

import json
from pathlib import Path

import pytest
import torch

from tests.unit.algorithms.scored import tokens_of
from tests.unit.algorithms.verl.arrays import DIVERGENCES, arrays, far
from verl_hpc.algorithms import advantages, losses
from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.aggregation import Aggregation
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.correction import CorrectionConfig, RejectConfig, correct
from verl_hpc.algorithms.kl import KlController, kl_penalty
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.off_policy import off_policy
from verl_hpc.algorithms.value_loss import clipped_value_loss

VERL = json.loads(Path(__file__).with_name("verl.json").read_text(encoding="utf-8"))
GIVEN = arrays()
MASK, OLD, NEW = GIVEN["mask"], GIVEN["old"], GIVEN["new"]
NUM_TOKENS, NUM_SEQUENCES = int(MASK.sum()), len(MASK)


def same(ours, theirs, tolerance=1e-9):
    """Where a token counts, if it is of tokens."""
    theirs = torch.tensor(theirs, dtype=torch.float64)
    if theirs.shape == MASK.shape:
        ours, theirs = (torch.where(MASK.bool(), x, 0) for x in (ours, theirs))
    torch.testing.assert_close(ours.detach().double(), theirs, rtol=tolerance, atol=tolerance)


PAGE = (Path(__file__).parents[4] / "docs/verl_functions.md").read_text(encoding="utf-8")


def test_every_function_has_a_row():
    assert len(VERL["functions"]) == 49
    assert [name for name in VERL["functions"] if f"`{name}`" not in PAGE] == []


ADVANTAGES = {name: (name, {}) for name in VERL["advantages"]} | {
    "gae": ("gae", {"gamma": 0.9, "lam": 0.8}),
    "grpo_none": ("grpo", {"std": "none"}),
    "grpo_vectorized": ("grpo", {}),
    "gdpo": ("gdpo", {"rewards": ["a", "b"], "weights": [2.0, 0.5]}),
    "rloo_vectorized": ("rloo", {}),
    "reinforce_plus_plus": ("reinforce_plus_plus", {"gamma": 0.9}),
    "tir_optimal_token_baseline": ("optimal_token_baseline", {}),
}
"""Ours for each of verl's, and its settings."""
NEAR = {"gdpo": 1e-5, "grpo_vectorized": 2e-6}
"""Tolerances where verl computes in float32."""
OF_SEQUENCES = 1e-7
"""Where verl adds 1e-8 to the tokens of a sequence that a sum is divided by."""


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages(name):
    batch = Scored(
        scores=GIVEN["scores"],
        groups=GIVEN["groups"],
        here=torch.arange(NUM_SEQUENCES),
        pad=lambda: (MASK, GIVEN["rewards"]),
        values=GIVEN["values"],
        greedy=GIVEN["greedy"],
        log_probs=OLD,
        sum_p_squared=GIVEN["squares"],
        components={"a": GIVEN["part_a"].double(), "b": GIVEN["part_b"].double()},
    )
    ours, options = ADVANTAGES[name]
    computed = tokens_of(members(advantages, Advantage)[ours](**options), batch)
    for ours, theirs in zip(computed, VERL["advantages"][name], strict=False):
        same(ours, theirs, NEAR.get(name, 1e-9))


LOSSES = {name: (name, {}) for name in VERL["losses"]} | {
    "vanilla": ("ppo_clip", {"clip_high": 0.28}),
    "geo_mean": ("gmpo", {}),
    "cispo": ("cispo", {"clip_low": 0.2, "clip_high": 0.28}),
    "dppo_tv": ("dppo", {"max_ratio": 3.0}),
    "dppo_kl": ("dppo", {"divergence": "kl", "max_ratio": 3.0}),
    "dro": ("dro", {"beta": 0.5}),
}


@pytest.mark.parametrize("recorded", ["losses", "weighted_losses"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_gradients_and_metrics(name, recorded):
    value, gradient, metrics = VERL[recorded][name]
    new = NEW.clone().requires_grad_()
    ours, options = LOSSES[name]
    loss = members(losses, PolicyLoss)[ours](**options)
    of_tokens, sums = loss(Tokens(OLD, new, GIVEN["advantages"], MASK))
    if recorded == "weighted_losses":
        of_tokens = loss.weighted(of_tokens, GIVEN["weights"], MASK)
    mode = loss.aggregation
    total = Aggregation(mode, NUM_TOKENS, NUM_SEQUENCES)(of_tokens, MASK)
    total.backward()
    tolerance = 1e-9 if mode == "token-mean" else OF_SEQUENCES
    same(total, value, tolerance)
    same(new.grad, gradient, tolerance)
    for key, theirs in metrics.items():
        if key.removeprefix("actor/") in sums:  # verl writes zeros of what a loss has not
            ours = sums[key.removeprefix("actor/")].item() / NUM_TOKENS
            assert ours == pytest.approx(theirs, abs=1e-7), key
        else:
            assert theirs == 0.0, key


@pytest.mark.parametrize(
    "mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_aggregations(mode):
    found = Aggregation(mode, NUM_TOKENS, NUM_SEQUENCES, 7.0)(GIVEN["advantages"], MASK)
    same(found, VERL["others"][f"agg_{mode}"], OF_SEQUENCES if "token-mean" in mode else 1e-9)


def test_the_critics_loss():
    of_tokens, sums = clipped_value_loss(
        GIVEN["advantages"], GIVEN["values"], GIVEN["rewards"], MASK, 0.5
    )
    value, clipped = VERL["others"]["value_loss"]
    same(Aggregation("token-mean", NUM_TOKENS, NUM_SEQUENCES)(of_tokens, MASK), value)
    assert sums["vf_clipfrac"].item() / NUM_TOKENS == pytest.approx(clipped, abs=1e-7)


@pytest.mark.parametrize("kind", ["k1", "k1+", "abs", "k2", "k3", "k3+"])
def test_estimators_of_the_divergence_and_their_gradients(kind):
    new = NEW.clone().requires_grad_()
    kl = kl_penalty(new, OLD, kind)
    kl.sum().backward()
    value, gradient = VERL["others"][f"kl_penalty_{kind}"]
    same(kl, value)
    same(new.grad, gradient)
    if not kind.endswith("+"):
        same(kl, VERL["others"][f"kl_{kind}"])


def test_verls_old_policy_loss_is_that_of_ppo():
    loss, clipped, divergence, clipped_below = VERL["others"]["policy_loss"]
    found, _, metrics = VERL["losses"]["vanilla"]
    assert loss == pytest.approx(found, rel=1e-12)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(clipped)
    assert metrics["actor/ppo_kl"] == pytest.approx(divergence)
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(clipped_below)


def test_rewards_with_a_penalty_on_the_divergence():
    same(GIVEN["rewards"] - 0.3 * kl_penalty(OLD, NEW, "k1"), VERL["others"]["rewards"])


def test_an_adaptive_coefficient():
    controller, found = KlController(0.2, target=0.1, horizon=1000), []
    for kl in DIVERGENCES:
        controller.update(kl, 64)
        found.append(controller.coefficient)
    assert found == pytest.approx(VERL["others"]["kl_coefficients"], rel=1e-12)


CORRECTIONS = [
    ("token", {}),
    ("sequence", {"weights": "sequence", "upper": 5.0}),
    ("token_normalised", {"normalise": True}),
    ("sequence_normalised", {"weights": "sequence", "upper": 5.0, "normalise": True}),
    ("icepop", {"outside": "leave_out", "lower": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), CORRECTIONS)
def test_weights_of_a_correction(name, settings):
    found = correct(CorrectionConfig(**settings), OLD, NEW, MASK)
    same(found.weights, VERL["corrections"][f"weights_{name}"], 1e-8)


OUTLIERS = [
    ("seq_sum_k1", "product", 0.2, 5.0, NEW),
    ("seq_mean_k1", "geometric_mean", 0.7, 1.3, NEW),
    ("far_seq_sum_k1", "product", 0.2, 1e10, far(GIVEN)),
    ("far_seq_mean_k1", "geometric_mean", 0.7, 150.0, far(GIVEN)),
]


@pytest.mark.parametrize(("name", "ratio", "lower", "upper", "new"), OUTLIERS)
def test_sequences_that_are_left_out(name, ratio, lower, upper, new):
    """verl bounds the inverse ratio."""
    reject = RejectConfig(ratio=ratio, lower=1 / upper, upper=1 / lower)
    found = correct(CorrectionConfig(weights="none", reject=reject), OLD, new, MASK)
    assert 0 < found.mask.sum() < NUM_TOKENS
    same(found.mask, VERL["corrections"][f"mask_{name}"])


@pytest.mark.parametrize(("recorded", "new"), [("metrics", NEW), ("metrics_far", far(GIVEN))])
def test_distances_of_engine_and_trainer(recorded, new):
    ours, theirs = off_policy(OLD, new, MASK), VERL["corrections"][recorded]
    for name in ("kl", "k3_kl", "chi2_token", "chi2_seq", "ppl_ratio"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6), name
