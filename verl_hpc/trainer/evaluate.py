"""Greedy answers to held-out problems, scored."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.rollout.protocol import Sampling
from verl_hpc.trainer.batch import Prompts
from verl_hpc.trainer.measure import warn_of_dropped
from verl_hpc.trainer.operators.generate import respond
from verl_hpc.trainer.operators.score import score
from verl_hpc.trainer.workers import Workers


def evaluate(workers: Workers, step: int) -> dict[str, float]:
    """Mean score on the evaluation problems, and the share that scored 1 or more, with the weights
    that the rollout engine has.

    A prompt that rollout.overlong_prompt drops scores 0, so that a smaller max_prompt_tokens makes
    no better accuracy. Every rank calls it.
    """
    source = workers.evaluation_source
    assert source is not None
    limit = workers.config.evaluation.max_prompts or len(source)
    prompts = Prompts(step, range(min(limit, len(source))))
    sampling = Sampling.greedy(workers.config.rollout)
    scores = score(workers, respond(workers, source, prompts, 1, sampling, "evaluation"))
    num_prompts = len(prompts.rows)
    dropped = num_prompts - len(scores.values)
    warn_of_dropped(workers, f"evaluation of step {step}", dropped, num_prompts)
    return held_out_metrics(scores.values, num_prompts)


def held_out_metrics(scores: Sequence[float], num_prompts: int) -> dict[str, float]:
    """Metrics of the scores of those of `num_prompts` problems that were answered."""
    return {
        "val/score/mean": sum(scores) / num_prompts,
        # Some rewards give part of a point for an answer that is nearly right.
        "val/accuracy": sum(v >= 1.0 for v in scores) / num_prompts,
        "val/num_prompts": float(num_prompts),
        "val/num_dropped": float(num_prompts - len(scores)),
    }
