"""Settings of evaluation: when, on what, and how answers are sampled."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from verl_hpc.config.data import SetName, SourceConfig
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.rollout import Temperature
from verl_hpc.section import Finite, NonNegative, Number, Positive, Section

ONLY_SET = "evaluation"
"""Name of the evaluation set that data.evaluation becomes."""


class EvaluationSetConfig(Section):
    """Held-out problems, how many answers each gets, and who scores them."""

    source: SourceConfig
    """Problems of the set: files, or a generated task."""
    num_samples: Annotated[Positive, Field(le=10_000)] = 1
    """Answers per prompt. With several there are avg@k, their share that is right, and pass@k, how
    likely one of k is right (arXiv 2107.03374)."""
    temperature: Temperature | None = None
    """0 decodes greedily. null takes 0 for one answer per prompt, and 1 for several."""
    top_p: Annotated[Number, Field(gt=0.0, le=1.0)] = 1.0
    """Sample only from the likeliest tokens with this total probability; 1 takes all."""
    max_response_tokens: Positive | None = None
    """Longest answer, in tokens; it may be longer than those trained on. null takes
    rollout.max_response_tokens."""
    max_prompts: Positive | None = None
    """Only the first so many prompts; null takes all."""
    reward: RewardConfig | None = None
    """Who scores this set; null takes the run's reward."""

    @property
    def chosen_temperature(self) -> float:
        """`temperature`, or the one that goes with the number of answers."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.num_samples == 1 else 1.0

    @model_validator(mode="after")
    def _scores_as_they_are(self) -> EvaluationSetConfig:
        if self.reward is not None and self.reward.smoothing is not None:
            raise ValueError(
                "reward.smoothing is of scores to train on; leave it out, an evaluation shows "
                "scores as they are"
            )
        return self

    @model_validator(mode="after")
    def _samples_as_it_says(self) -> EvaluationSetConfig:
        if self.chosen_temperature > 0.0:
            return self
        if self.num_samples > 1:
            raise ValueError(
                f"num_samples = {self.num_samples} with temperature = 0, which gives one answer "
                "as often; choose a temperature above 0, or num_samples: 1"
            )
        if self.top_p < 1.0:
            raise ValueError(
                f"top_p = {self.top_p:g} with temperature = 0, which takes the likeliest token; "
                "choose a temperature above 0, or leave top_p out"
            )
        return self


class EvaluationConfig(Section):
    """Answers to held-out problems, scored: greedy ones to data.evaluation, or those of sets."""

    every: NonNegative = 0
    """Steps between evaluations, in addition to the last step's; 0 evaluates only if at_start is
    set."""
    at_start: bool = False
    """Evaluate the weights that the run starts from, and those it ends with."""
    max_prompts: Positive | None = None
    """Evaluate on the first so many prompts of data.evaluation; null takes all. Sets have their
    own."""
    stop_at: Finite | None = None
    """End the run when the mean score reaches this; of several sets the first one's score counts.
    """
    save_generations: bool = False
    """Keep every answer with its prompt, its score and its figures, as JSON lines in evaluations/
    of the run directory; `python -m verl_hpc generations RUN` reads them."""
    sets: dict[SetName, EvaluationSetConfig] = {}
    """Sets of problems by name, instead of data.evaluation (docs/evaluation.md). Metrics are
    val/NAME/..., and also val/... for the first set."""

    @property
    def wanted(self) -> bool:
        """Whether the run evaluates at all."""
        return self.every > 0 or self.at_start

    @property
    def answers_alone(self) -> str:
        """A given setting that only applies to evaluations on prompts, for errors; empty if none is
        given."""
        if self.sets:
            return f"evaluation.sets ({', '.join(self.sets)})"
        return "evaluation.save_generations" if self.save_generations else ""

    @model_validator(mode="after")
    def _saves_what_there_is(self) -> EvaluationConfig:
        if self.save_generations and not self.wanted:
            raise ValueError("save_generations needs every > 0 or at_start")
        return self

    @model_validator(mode="after")
    def _limits_one_thing(self) -> EvaluationConfig:
        if self.sets and self.max_prompts is not None:
            raise ValueError(
                f"max_prompts = {self.max_prompts} is of data.evaluation, and sets are given; give "
                "max_prompts in each set that it is meant for"
            )
        return self
