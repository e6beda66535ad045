"""Advantages, losses, distillation, and the batches they are computed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from verl_hpc.algorithms import advantages, losses, preferences
from verl_hpc.algorithms.advantage import Advantage, OwnAdvantage
from verl_hpc.algorithms.advantages.grpo import Grpo
from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.choices import one_of
from verl_hpc.algorithms.correction import CorrectionConfig
from verl_hpc.algorithms.kl import Estimator
from verl_hpc.algorithms.kto import Kto
from verl_hpc.algorithms.loss import OwnLoss, PolicyLoss
from verl_hpc.algorithms.losses.ppo_clip import PpoClip
from verl_hpc.algorithms.overlong import OverlongConfig
from verl_hpc.algorithms.preference import OwnPreference, PreferenceLoss
from verl_hpc.algorithms.preferences.dpo import Dpo
from verl_hpc.section import (
    Finite,
    NonNegative,
    NonNegativeFinite,
    Number,
    Positive,
    PositiveFinite,
    Section,
    chosen_by,
    is_own,
)

if TYPE_CHECKING:
    AdvantageConfig = Advantage
    LossConfig = PolicyLoss
    PreferenceConfig = PreferenceLoss
else:
    AdvantageConfig = one_of(advantages, Advantage, OwnAdvantage, "grpo")
    LossConfig = one_of(losses, PolicyLoss, OwnLoss, "ppo_clip")
    PreferenceConfig = one_of(preferences, PreferenceLoss, OwnPreference, "dpo")

_HARDLY = "as part of the reward it hardly pulls towards the reference, whatever the coefficient"
_BIASED = {
    ("loss", "k1"): "its expected gradient is zero, so that only noise is left",
    ("loss", "abs"): "its gradient does not fade as the policy comes near the reference",
    ("reward", "abs"): _HARDLY,
    ("reward", "k2"): _HARDLY,
    ("reward", "k3"): _HARDLY,
}
_DEFAULT_ESTIMATOR: Mapping[str, Estimator] = {"reward": "k1", "loss": "k3", "none": "k3"}
SCALED = "seq-mean-token-sum-norm"
_INSTEAD = {"reward": "k1 (the default)", "loss": "k3 (the default) or k2"}


class KlConfig(Section):
    """Penalty for leaving the reference policy (the weights the run started from)."""

    placement: Literal["none", "reward", "loss"] = "none"
    """none computes no reference log-probs at all."""
    estimator: Estimator | None = None
    """Schulman's estimators; null takes k1 in the reward, k3 in the loss. A trailing + takes k2's
    gradient, in the loss."""
    allow_biased: Annotated[bool, chosen_by("estimator")] = False
    """Accept an estimator whose gradient is not that of the KL divergence where it is placed: k1
    and abs in the loss, abs, k2 and k3 in the reward (arXiv 2512.21852, 2510.01555)."""
    coefficient: NonNegativeFinite = 0.001
    """Weight of the penalty; under the adaptive controller, the one it begins with."""
    controller: Literal["fixed", "adaptive"] = "fixed"
    """adaptive changes the coefficient after each batch to keep the KL near target (arXiv
    1909.08593, section 2.2); needs placement: reward."""
    target: Annotated[PositiveFinite, chosen_by("controller")] = 0.1
    """KL that the adaptive controller steers to."""
    horizon: Annotated[Positive, chosen_by("controller")] = 10000
    """Samples over which the adaptive controller corrects by its full step."""

    @model_validator(mode="after")
    def _has_effect(self) -> KlConfig:
        if self.controller == "adaptive" and self.placement != "reward":
            raise ValueError("controller: adaptive needs placement: reward")
        if self.controller == "fixed":
            self._check_unchanged(("target", "horizon"), "controller: fixed")
        if self.placement == "none":
            unread = ("coefficient", "estimator", "allow_biased")
            self._check_unchanged(unread, "placement: none")
        return self

    @model_validator(mode="after")
    def _pulls_to_the_reference(self) -> KlConfig:
        where = f"estimator: {self.estimator} with placement: {self.placement}"
        instead = _INSTEAD.get(self.placement)
        if self.placement == "reward" and self.estimator in ("k1+", "k3+"):
            raise ValueError(
                f"{where}: a reward has no gradient, and the + only changes that; choose {instead}"
            )
        reason = _BIASED.get((self.placement, self.estimator or ""))
        if reason and not self.allow_biased:
            raise ValueError(
                f"{where}: {reason} (arXiv 2512.21852, 2510.01555); choose {instead}, or set "
                "allow_biased: true"
            )
        return self

    @property
    def chosen_estimator(self) -> Estimator:
        """`estimator`, or the one that goes with the placement."""
        return self.estimator or _DEFAULT_ESTIMATOR[self.placement]


class ProcessRewardConfig(Section):
    """The implicit process reward model of an advantage that needs one: the role prm."""

    beta: PositiveFinite = 0.05
    """Factor of the reward, which is beta times the log-ratio of prm to its reference (arXiv
    2502.01456)."""


class AlgorithmConfig(Section):
    """Everything between a scored batch and a gradient."""

    advantage: AdvantageConfig = Grpo()
    """How scores become advantages (docs/algorithms.md). gae trains a critic beside the policy;
    path/file.py:Name is one of your own."""
    loss: LossConfig = PpoClip()
    """Policy loss of each token, from its advantage and log-probs; path/file.py:Name is one of your
    own."""
    aggregation: Mode | None = None
    """How the losses of a mini-batch's tokens become one: their mean, their sum, or the mean over
    sequences of their sum, their mean, or their sum divided by loss_scale (Dr.GRPO, arXiv
    2503.20783). null takes what goes with the loss: the mean over sequences of their mean for
    gspo, gmpo and sapo, else the mean of all tokens, as for the critic's loss."""
    penalty_aggregation: Mode | None = None
    """How the KL divergence and the entropy in the loss add up; null takes what the policy's loss
    has."""
    loss_scale: PositiveFinite | None = None
    """Divisor of a sequence's sum in seq-mean-token-sum-norm; null takes
    rollout.max_response_tokens."""
    entropy_coefficient: Finite = 0.0
    """Weight of the policy's entropy, which is taken off its loss: above 0 keeps samples varied."""
    old_log_probs: Literal["auto", "recompute", "rollout"] = "auto"
    """Source of the old log-probs in the ratio: the trainer, or the rollout engine. auto and
    rollout make no forward pass for them where a batch is one optimizer step and nothing else needs
    them before it: its own forward pass has the trainer's."""
    router_replay: Literal["none", "rollout"] = "none"
    """The experts that a mixture of experts trains with: those that its routers choose, or those
    that the rollout chose for the same tokens, in old log-probs and in the update (R3, arXiv
    2510.11370; docs/experts.md). Needs rollout.engine: vllm."""
    correction: CorrectionConfig | None = None
    """Weigh, or leave out, tokens by how likely the trainer finds them, relative to the engine that
    sampled them: with a rollout.staleness the decoupled loss (arXiv 2505.24298). null weighs all
    alike."""
    overlong: OverlongConfig | None = None
    """Treatment of responses that are too long; null has none."""
    drop_equal_groups: bool = False
    """Do not train on prompts whose responses all have the same score, which tell nothing apart
    (DAPO's dynamic sampling, arXiv 2503.14476); batch.refill_rounds asks others instead."""
    top_entropy: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    """Share of a step's tokens, those of the highest entropy, that enter the policy's loss (arXiv
    2506.01939, which takes 0.2); 1 takes all."""
    kl: KlConfig = KlConfig()
    prm: ProcessRewardConfig = ProcessRewardConfig()
    preference: PreferenceConfig = Dpo()
    """Loss of recipe dpo on a pair of answers (docs/algorithms.md); path/file.py:Name is one of
    your own."""
    kto: Kto = Kto()
    """Loss of recipe kto on an answer that is good or bad."""

    @model_validator(mode="after")
    def _scale_has_effect(self) -> AlgorithmConfig:
        chosen = self.aggregation or self.loss.aggregation
        has_penalty = self.kl.placement == "loss" or self.entropy_coefficient
        if self.penalty_aggregation is not None and not has_penalty:
            raise ValueError(
                f"penalty_aggregation = {self.penalty_aggregation} has no effect without a KL "
                "divergence or an entropy in the loss; leave it out, or set kl.placement: loss or "
                "entropy_coefficient"
            )
        if (
            self.loss_scale is not None
            and SCALED not in (chosen, self.penalty_aggregation)
            and not is_own(self.loss.name)
        ):
            raise ValueError(
                f"loss_scale = {self.loss_scale:g} has no effect with aggregation = {chosen}; "
                f"leave it out, or choose {SCALED} where the recipe aggregates"
            )
        return self


class BatchConfig(Section):
    """Size of a step, and how it is divided."""

    size: Annotated[Positive, Field(le=1_000_000)] = 128
    """Prompts a step (rl), examples a step (sft, kto) or pairs a step (reward_model, dpo)."""
    spare_prompts: Annotated[NonNegative, Field(le=1_000_000)] = 0
    """Prompts that a step asks beyond size. It trains on the size prompts whose responses are
    finished first, and drops the others: short responses are then trained on more often than they
    are given (docs/asynchronous.md)."""
    mini_batches: Positive = 1
    """Optimizer steps that a batch is cut into, per update epoch."""
    update_epochs: Positive = 1
    """Passes over a batch."""
    refill_rounds: Annotated[NonNegative, Field(le=1000)] = 0
    """Rounds in which other prompts are asked instead of those whose responses all have one score
    (DAPO's dynamic sampling, arXiv 2503.14476); needs algorithm.drop_equal_groups. What is still
    missing after them is not trained on."""
    shuffle_mini_batches: Literal["none", "samples", "groups"] = "none"
    """How samples are dealt into mini-batches. none: neighbours, the same in every update epoch.
    samples deals single samples (of reward_model: pairs), groups all responses to a prompt
    together, in another order in each update epoch, which follows from seed, step and epoch
    whatever the layout."""
    max_tokens_per_micro_batch: Positive = 16384
    """Tokens of one forward and backward pass on a model-parallel group."""

    @property
    def asked(self) -> int:
        """Rows of the data that a step takes."""
        return self.size + self.spare_prompts


class Objective(Section):
    """Settings of every kind of distillation."""

    task_reward_weight: NonNegativeFinite = 0.0
    """Weight of the advantages of the reward, which are made as algorithm.advantage says; 0 scores
    nothing."""
    clamp: PositiveFinite | None = None
    """Bound of what the teacher gives each token: with reverse_kl of its advantage, above and below
    0, and with forward_kl of its divergence; null sets none."""


class ReverseKl(Objective):
    """The advantage of each token is log p_teacher - log p_policy, whose mean is minus the reverse
    KL divergence; it goes through algorithm.loss."""

    name: Literal["reverse_kl"] = "reverse_kl"


class ForwardKl(Objective):
    """The KL divergence from the teacher to the policy, at the tokens of the policy's responses."""

    name: Literal["forward_kl"] = "forward_kl"
    top_k: Positive = 64
    """Number of the teacher's likeliest tokens whose probabilities are compared one by one; all
    others are compared as one, unless rest is false."""
    rest: bool = True
    """Whether what both models leave to all other tokens is compared. Without it a token whose sum
    is below 0 teaches nothing (verl)."""
    min_log_prob: Annotated[Finite, Field(lt=0)] | None = None
    """Least log-prob of either model, below which the policy gets no gradient; null sets none."""


DistillationConfig = Annotated[ReverseKl | ForwardKl, Field(discriminator="name")]


def unmet_need(advantage: Advantage) -> str | None:
    """Describe what an estimator needs and a distillation lacks; None if it lacks nothing."""
    needs = sorted(advantage.needs & {"values", "greedy", "process_rewards"})
    if not needs:
        return None
    what = needs[0].replace("_", " ")
    return (
        f"algorithm.advantage.name = {advantage.name}: needs {what}, which recipe: distillation "
        "has not; choose one that needs scores alone, such as grpo"
    )
