"""The work of a step of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from verl_hpc.config.run import RunConfig
from verl_hpc.planner.timing.lengths import Lengths

MEAN_PROMPT_SHARE = 0.5
"""Assumed mean prompt length, as a share of the longest prompt that the configuration allows."""
MEAN_RESPONSE_SHARE = 0.5
"""Assumed mean response length, as a share of the longest, as the rollout engine assumes when it
sizes its batches."""


@dataclass(frozen=True)
class Workload:
    """The sequences of a step, and how they are split into batches."""

    sequences: int
    """Sequences of a step: prompts x samples, examples, or pairs x 2."""
    samples: int
    """Samples of each prompt."""
    prompt: float
    """Tokens of a mean prompt."""
    responses: Lengths
    """Tokens of the responses, or of the answers that are imitated."""
    mini_batches: int
    update_epochs: int
    max_tokens: int
    """Token budget of a micro-batch."""
    in_flight: int = 1
    """Steps whose responses an engine decodes at a time: rollout.staleness, or 1."""

    @property
    def sequence(self) -> float:
        """Tokens of a mean sequence."""
        return self.prompt + self.responses.mean

    @property
    def square(self) -> float:
        """Mean of the squared tokens of a sequence."""
        mean, prompt = self.responses.mean, self.prompt
        return prompt**2 + 2 * prompt * mean + self.responses.mean_square

    @property
    def alone(self) -> float:
        """Share of sequences that are longer than half a micro-batch."""
        return self.responses.longer(self.max_tokens / 2 - self.prompt)

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.sequences * self.sequence

    @property
    def updates(self) -> int:
        """Optimizer steps of a step."""
        return self.mini_batches * self.update_epochs

    def greedily(self) -> Workload:
        """The workload with one answer to each prompt."""
        return replace(self, sequences=max(self.sequences // self.samples, 1), samples=1)


def workload_of(
    config: RunConfig, prompt: float | None = None, responses: Lengths | None = None
) -> Workload:
    """Work of a step of a run.

    Args:
        config: of the run.
        prompt: tokens of a mean prompt; None takes half of the longest.
        responses: their lengths; None takes a lognormal with half of the longest as mean.
    """
    rollout, batch = config.rollout, config.batch
    samples = rollout.num_samples if config.samples_to_train else 1
    each = 2 if config.recipe in ("reward_model", "dpo") else samples
    longest = rollout.max_response_tokens
    return Workload(
        sequences=batch.size * each,
        samples=samples,
        prompt=prompt or max(MEAN_PROMPT_SHARE * rollout.max_prompt_tokens, 1.0),
        responses=responses or Lengths(max(MEAN_RESPONSE_SHARE * longest, 1.0), longest),
        mini_batches=batch.mini_batches,
        update_epochs=batch.update_epochs,
        max_tokens=batch.max_tokens_per_micro_batch,
        in_flight=max(rollout.staleness, 1),
    )
