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
from verl_hpc.trainer.recipe import Recipe


def evaluate(run: RunContext, step: int) -> tuple[dict[str, float], list[SampleGroup]]:
    """Mean score on the evaluation problems, and the share that scored 1 or more, with the weights
    that the rollout engine has.

    A prompt that rollout.overlong_prompt drops scores 0, so that a smaller max_prompt_tokens makes
    no better accuracy. Every rank calls it; those that generate do the work.

    Returns:
        Metrics, the same on every rank, and some answers to look at, on rank 0.
    """
    rows, rollout = evaluation_rows(run, step), run.rollout
    assert rollout is not None
    found = _answer(run, rows) if rollout.place.is_here else None
    if not rollout.place.is_world:
        found = run.session.control.broadcast(found, root=rollout.place.ranks[0])
    assert found is not None
    scores, groups = found
    return held_out_metrics(scores.values, len(rows.rows)), groups


def evaluate_by(flow: Recipe, run: RunContext, step: int) -> dict[str, float]:
    """What a recipe's own evaluation gives, the same on every rank; every rank calls it."""
    flow.metrics.clear()
    flow.compiled().run(run.rank, run.exchange, rows=evaluation_rows(run, step))
    found = run.session.control.allgather(dict(flow.metrics))
    return {name: value for of_rank in found for name, value in of_rank.items()}


def evaluation_rows(run: RunContext, step: int) -> StepRows:
    """The rows that an evaluation after `step` is about."""
    count = len(run.settings.evaluation_problems.source)
    return StepRows(step, range(min(run.config.evaluation.max_prompts or count, count)))


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
