"""verl's losses and what bounds their ratios: what verl reads is what a run has."""

import itertools

import pytest

from tests.unit.migration.cases import ACTOR
from tests.unit.migration.cases import WORDS as BASE
from verl_hpc.migration import translate
from verl_hpc.migration.translate import migrate

BOUNDED = {
    "vanilla": ("clip_low", "clip_high"),
    "gspo": ("clip_low", "clip_high"),
    "geo_mean": ("clip_low", "clip_high"),
    "cispo": ("clip_low", "clip_high"),
    "clip_cov": ("clip_low", "clip_high"),
    "dppo_tv": ("threshold", "threshold"),
    "dppo_kl": ("threshold", "threshold"),
}
"""verl's losses that read clip_ratio_low and clip_ratio_high, and our settings."""
ESTIMATORS = ("gae", "grpo", "rloo", "reinforce_plus_plus", "remax")
MODES = (*BOUNDED, "sapo", "gpg", "kl_cov", "dro")


def words_of(mode):
    words = [*BASE, f"{ACTOR}.policy_loss.loss_mode={mode}"]
    return [*words, f"{ACTOR}.policy_loss.dro_beta=0.1"] if mode == "dro" else words


@pytest.mark.parametrize("mode", BOUNDED)
def test_a_loss_has_verls_bounds_at_our_default_for_another_loss_too(mode):
    sides = (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")
    for given in ((0.2, 0.2), (0.15, 0.15), (0.05, 0.05), (3e-4, 3e-4), (1.0, 1.0), None):
        over = [f"{side}={v}" for side, v in zip(sides, given, strict=True)] if given else []
        found = migrate([*words_of(mode), *over])
        loss = found.config().algorithm.loss
        assert tuple(getattr(loss, name) for name in BOUNDED[mode]) == (given or (0.2, 0.2))
        if mode != "vanilla":
            assert not found.notes.keys() & set(sides)


def test_what_is_left_out_of_a_run_is_what_the_run_has_without_it(monkeypatch):
    others = []
    for mode, estimator in itertools.product(MODES, ESTIMATORS):
        words = [*words_of(mode), f"algorithm.adv_estimator={estimator}"]
        run = migrate([*words, "actor_rollout_ref.rollout.n=2"])
        with monkeypatch.context() as patch:
            patch.setattr(translate, "_trimmed", dict)
            whole = migrate([*words, "actor_rollout_ref.rollout.n=2"])
        assert len(whole.settings) > len(run.settings)
        if run.config() != whole.config():
            others.append((mode, estimator))
    assert others == []
