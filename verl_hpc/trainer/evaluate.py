"""Generate, score and save answers to held-out problems."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from verl_hpc.algorithms.pass_at_k import ks_up_to, pass_at_k
from verl_hpc.generation.conversation import STEPS_FAILED
from verl_hpc.generation.generate import generate
from verl_hpc.generation.score import by_prompt, score
from verl_hpc.generation.slots import EvaluationSet
from verl_hpc.metrics.generations import Generation, line_of, write_generations
from verl_hpc.metrics.names import RIGHT
from verl_hpc.metrics.samples import SampleGroup
from verl_hpc.step.batch import TOKENS, Columns, Samples, Scores, StepRows
from verl_hpc.step.operators.assign import count_dropped
from verl_hpc.step.placement import Placement
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.look import answer_samples, texts_of
from verl_hpc.trainer.recipe import Recipe

_logger = logging.getLogger(__name__)
_OF_FIRST = ("score/mean", "accuracy", "num_prompts", "num_dropped")


def evaluate(run: RunContext, step: int) -> tuple[dict[str, float], list[SampleGroup]]:
    """Evaluate all sets with the rollout engine's current weights; metrics are those of
    `held_out_metrics`, under val/ for data.evaluation, under val/NAME/ for a set.

    A prompt dropped by rollout.overlong_prompt scores 0, so that a smaller max_prompt_tokens does
    not raise the accuracy. Every rank calls it; generating ranks do the work.

    Returns:
        Metrics, equal on every rank, and some answers for people to read, on rank 0.
    """
    rollout, sets = run.rollout, run.settings.evaluation_sets
    assert rollout is not None
    lines: list[Sequence[str]] = []
    answered = [_answer(run, step, held_out, lines) for held_out in sets if rollout.place.is_here]
    if run.config.evaluation.save_generations and rollout.place.is_here:
        _save(run, rollout.place, step, lines)
    if not rollout.place.is_world:
        answered = run.session.control.broadcast(answered, root=rollout.place.ranks[0])
    names = [held_out.name for held_out in sets] if run.config.evaluation.sets else [""]
    metrics = metrics_of_sets(dict(zip(names, (of_set for of_set, _ in answered), strict=True)))
    in_turn = zip_longest(*(groups for _, groups in answered))
    return metrics, [group for groups in in_turn for group in groups if group is not None]


def evaluate_by(flow: Recipe, run: RunContext, step: int) -> dict[str, float]:
    """Run a recipe's own evaluation; return its metrics, equal on every rank. Every rank calls
    it."""
    flow.metrics.clear()
    (chosen,) = run.config.evaluation_sets.values()
    count = len(run.settings.evaluation_problems.source)
    rows = range(min(chosen.max_prompts or count, count))
    flow.pipeline().run(run.rank, run.exchange, rows=StepRows(step, rows))
    found = run.session.control.allgather(dict(flow.metrics))
    return {name: value for of_rank in found for name, value in of_rank.items()}


def _answer(
    run: RunContext, step: int, held_out: EvaluationSet, lines: list[Sequence[str]]
) -> tuple[dict[str, float], list[SampleGroup]]:
    """Return a set's metrics, and some answers on the first generating rank; on the first rank of
    each engine add the engine's answers to `lines`, if they are saved."""
    rollout = run.rollout
    assert rollout is not None
    place, limit = rollout.place, run.config.rollout.max_prompt_tokens
    rows, when = StepRows(step, range(held_out.num_prompts)), f"evaluation of step {step}"
    (samples, sequences), turns = generate(place, rollout, held_out.generate, rows)
    count_dropped(place, limit, samples.samples, held_out.num_prompts, when, held_out.setting)
    scores, _ = score(place, held_out.score, rows, samples, sequences)
    if run.config.evaluation.save_generations and place.leads_group:
        lines.append([*_lines_of(run, step, held_out, samples, sequences, scores)])
    answers = list(by_prompt(samples, scores).values())
    groups = []
    if place.leads:
        groups = answer_samples(run, held_out.score.problems, rows, samples, sequences, scores)
    metrics = held_out_metrics(answers, held_out.num_prompts)
    if STEPS_FAILED in turns:
        metrics["num_failed"] = turns[STEPS_FAILED]
    return metrics, groups


def held_out_metrics(answers: Sequence[Sequence[float]], num_prompts: int) -> dict[str, float]:
    """Compute the metrics of a set.

    Args:
        answers: scores by answered prompt, equally many for each; at least one prompt.
        num_prompts: number of prompts, including unanswered ones, which count as wrong.

    Returns:
        score/mean; accuracy, the share of answers that score `RIGHT` or more; num_prompts and
        num_dropped; with n > 1 answers per prompt avg@n, which equals the accuracy, and pass@k for
        `ks_up_to(n)`.
    """
    num_samples = len(answers[0])
    correct = [sum(value >= RIGHT for value in of_prompt) for of_prompt in answers]
    accuracy = sum(correct) / (num_prompts * num_samples)
    metrics = {
        "score/mean": sum(map(sum, answers)) / (num_prompts * num_samples),
        "accuracy": accuracy,
        "num_prompts": float(num_prompts),
        "num_dropped": float(num_prompts - len(answers)),
    }
    if num_samples == 1:
        return metrics
    metrics[f"avg@{num_samples}"] = accuracy
    for k in ks_up_to(num_samples):
        passed = sum(pass_at_k(num_samples, num_correct, k) for num_correct in correct)
        metrics[f"pass@{k}"] = passed / num_prompts
    return metrics


def metrics_of_sets(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return metrics by their full names: an unnamed set's under val/, others' under val/NAME/, and
    the first set's four common metrics also under val/."""
    first = next(iter(found.values()))
    named = {
        f"val/{name}/{metric}" if name else f"val/{metric}": value
        for name, of_set in found.items()
        for metric, value in of_set.items()
    }
    return {f"val/{metric}": first[metric] for metric in _OF_FIRST} | named


def _lines_of(
    run: RunContext,
    step: int,
    held_out: EvaluationSet,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
) -> Iterator[str]:
    """Yield the answers that this rank's engine generated to a set, as lines of a file."""
    numbers, problems = numbers_of(samples), held_out.score.problems
    problems.read(sorted({samples.samples[p].group for p in sequences.positions}))  # all at once
    for position, tokens in zip(sequences.positions, sequences[TOKENS], strict=True):
        sample = samples.samples[position]
        texts = texts_of(run, problems, sample.group, sample, tokens)
        generation = Generation(
            step=step,
            set=held_out.name,
            row=sample.group,
            sample=numbers[position],
            response=texts.pop("text"),
            num_tokens=sample.response_length,
            score=scores.values[position],
            extra=scores.details[position],
            **texts,
        )
        yield line_of(generation)


def _save(run: RunContext, place: Placement, step: int, lines: Sequence[Sequence[str]]) -> None:
    """Write the answers of all engines, given by set; all generating ranks call it.

    If the file cannot be written (full disk, quota) a warning is logged, and the run continues.
    """
    of_engines = list(filter(None, place.control.gather(lines)))
    if not place.leads:
        return
    in_order = chain.from_iterable(chain.from_iterable(zip(*of_engines, strict=True)))
    try:
        write_generations(run.config.run_directory, step, in_order)
    except OSError as error:
        _logger.warning("the answers of the evaluation of step %s are not saved: %s", step, error)


def numbers_of(samples: Samples) -> list[int]:
    """Return each sample's index among the answers to its prompt, by position."""
    numbers: list[int] = []
    seen: dict[int, int] = {}
    for sample in samples:
        numbers.append(seen.get(sample.group, 0))
        seen[sample.group] = numbers[-1] + 1
    return numbers
