"""Greedy answers to held-out problems, scored."""

from __future__ import annotations

from verl_hpc.rollout.protocol import Sampling
from verl_hpc.trainer.operators.generate import Prompts, respond
from verl_hpc.trainer.operators.score import score
from verl_hpc.trainer.workers import Workers


def evaluate(workers: Workers, step: int) -> dict[str, float]:
    """Mean score on the evaluation problems, and the share that scored 1 or more, with the weights
    that the rollout engine has.

    Every rank calls it.
    """
    source = workers.evaluation_source
    assert source is not None
    limit = workers.config.evaluation.max_prompts or len(source)
    prompts = Prompts(step, range(min(limit, len(source))))
    sampling = Sampling.greedy(workers.config.rollout)
    scores = score(workers, respond(workers, source, prompts, 1, sampling, "evaluation"))
    return {
        "val/score/mean": sum(scores.values) / len(scores.values),
        # Some rewards give part of a point for an answer that is nearly right.
        "val/accuracy": sum(v >= 1.0 for v in scores.values) / len(scores.values),
        "val/num_prompts": float(len(scores.values)),
    }
