"""Greedy answers to held-out problems, scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verl_hpc.metrics.samples import SampleGroup
from verl_hpc.trainer.batch import StepRows
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.look import join_samples, texts
from verl_hpc.trainer.operators.assign import check_samples, warn_of_dropped
from verl_hpc.trainer.operators.generate import generate
from verl_hpc.trainer.operators.score import Scores, score


def evaluate(run: RunContext, step: int) -> tuple[dict[str, float], list[SampleGroup]]:
    """Mean score on the evaluation problems, and the share that scored 1 or more, with the weights
    that the rollout engine has.

    A prompt that rollout.overlong_prompt drops scores 0, so that a smaller max_prompt_tokens makes
    no better accuracy. Every rank calls it; those that generate do the work.

    Returns:
        Metrics, the same on every rank, and some answers to look at, on rank 0.
    """
    problems, rollout = run.settings.evaluation_problems, run.rollout
    assert rollout is not None
    limit = run.config.evaluation.max_prompts or len(problems.source)
    rows = StepRows(step, range(min(limit, len(problems.source))))
    found = _answer(run, rows) if rollout.place.is_here else None
    if not rollout.place.is_world:
        found = run.session.control.broadcast(found, root=rollout.place.ranks[0])
    assert found is not None
    scores, groups = found
    return held_out_metrics(scores.values, len(rows.rows)), groups


def _answer(run: RunContext, rows: StepRows) -> tuple[Scores, list[SampleGroup]]:
    rollout, problems = run.rollout, run.settings.evaluation_problems
    assert rollout is not None
    place, limit = rollout.place, run.config.rollout.max_prompt_tokens
    settings = run.settings.generate.greedily(problems, "evaluation")
    (samples, sequences), _ = generate(place, rollout, settings, rows)
    check_samples(place, limit, f"step {rows.step}", samples.samples, "data.evaluation")
    scoring = replace(run.settings.score, problems=problems)
    scores, _ = score(place, scoring, rows, samples, sequences)
    dropped = len(rows.rows) - len(scores.values)
    warn_of_dropped(place, limit, f"evaluation of step {rows.step}", dropped, len(rows.rows))
    groups = []
    if place.leads:
        groups = join_samples([texts(run, rows, samples, sequences, scores, evaluates=True)])
    return scores, groups


def held_out_metrics(scores: Sequence[float], num_prompts: int) -> dict[str, float]:
    """Metrics of the scores of those of `num_prompts` problems that were answered."""
    return {
        "val/score/mean": sum(scores) / num_prompts,
        # Some rewards give part of a point for an answer that is nearly right.
        "val/accuracy": sum(v >= 1.0 for v in scores) / num_prompts,
        "val/num_prompts": float(num_prompts),
        "val/num_dropped": float(num_prompts - len(scores)),
    }
