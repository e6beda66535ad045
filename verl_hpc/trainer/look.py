"""A few prompts and responses of a step, as text for people to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_hpc.generation.answers import stop_reason
from verl_hpc.metrics.samples import MAX_GROUPS, MAX_RESPONSES, SampleGroup, SampleResponse
from verl_hpc.step.batch import ADVANTAGES, TOKENS, VERSIONS, Columns, Samples, StepRows
from verl_hpc.step.problems import StepProblems
from verl_hpc.step.scores import Scores
from verl_hpc.trainer.context import RunContext


@dataclass(frozen=True)
class SampleView:
    """One rank's part of the shown samples, by position."""

    groups: Mapping[int, int]
    """Prompt (group) of each shown sample; filled with the responses."""
    prompts: Mapping[int, tuple[str, str]]
    """(prompt, ground truth) by group."""
    responses: Mapping[int, SampleResponse]
    advantages: Mapping[int, float]
    scores: Mapping[int, float]


NOTHING = SampleView({}, {}, {}, {}, {})


def step_samples(run: RunContext, values: Mapping[str, Any]) -> SampleView:
    """Return this rank's part of a step's first few prompts; empty unless it leads a group."""
    rows, samples, sequences = (values.get(n) for n in ("rows", "samples", "sequences"))
    # Where prompts are left out and others asked instead.
    rows = values.get("asked", rows)
    here = [place for place in run.places.values() if place.is_here and place.leads_group]
    if run.rollout is None or not here or not isinstance(samples, Samples):
        return NOTHING
    groups = _first(samples)
    look, means, scores = NOTHING, {}, values.get("scores")
    if run.rollout.place in here and isinstance(sequences, Columns):
        assert isinstance(rows, StepRows)
        look = texts(run, run.settings.problems, rows, samples, sequences)
    advantages = values.get("advantages")
    if isinstance(advantages, Columns):
        of_samples = zip(advantages.positions, advantages[ADVANTAGES], strict=True)
        means = {i: float(row.mean()) for i, row in of_samples if i in groups and len(row)}
    shown = {}
    if isinstance(scores, Scores) and any(place.leads for place in here):
        shown = {i: scores.values[i] for i in groups}
    return replace(look, advantages=means, scores=shown)


def texts(
    run: RunContext,
    problems: StepProblems,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
    scores: Scores | None = None,
) -> SampleView:
    """Decode the shown prompts and responses that this rank's engine generated."""
    rollout = run.rollout
    assert rollout is not None
    recorded = sequences.values.get(VERSIONS, [()] * len(sequences.positions))
    versions = dict(zip(sequences.positions, recorded, strict=True))
    groups = _first(samples)
    prompts: dict[int, tuple[str, str]] = {}
    responses: dict[int, SampleResponse] = {}
    for position, tokens in zip(sequences.positions, sequences[TOKENS], strict=True):
        if position not in groups:
            continue
        sample = samples.samples[position]
        decode = run.tokenizer.decode
        if sample.group not in prompts:
            (problem,) = problems.read([rows.rows[sample.group]])
            text = decode(tokens[: sample.prompt_length].tolist())
            prompts[sample.group] = (str(text), str(problem.ground_truth))
        answer = tokens[sample.prompt_length :].tolist()
        reason = stop_reason(run.tokenizer, answer, sample.truncated, run.config.rollout.stop)
        begun = versions[position][:1]
        version = int(begun[0]) if len(begun) else rollout.version
        responses[position] = SampleResponse(
            str(decode(answer)), None, None, sample.truncated, version, reason
        )
    shown = {} if scores is None else {i: scores.values[i] for i in groups}
    return SampleView(groups, prompts, responses, {}, shown)


def join_samples(parts: Iterable[SampleView]) -> list[SampleGroup]:
    """Join all ranks' parts, by prompt."""
    groups: dict[int, int] = {}
    prompts: dict[int, tuple[str, str]] = {}
    responses: dict[int, SampleResponse] = {}
    advantages: dict[int, float] = {}
    scores: dict[int, float] = {}
    for part in parts:
        groups |= part.groups
        prompts |= part.prompts
        responses |= part.responses
        advantages |= part.advantages
        scores |= part.scores
    whole = {
        i: replace(response, score=scores.get(i), advantage=advantages.get(i))
        for i, response in sorted(responses.items())
    }
    return [
        SampleGroup(prompt, truth, [r for i, r in whole.items() if groups.get(i) == group])
        for group, (prompt, truth) in sorted(prompts.items())
    ]


def _first(samples: Samples) -> dict[int, int]:
    """Return the positions of the first responses to the first prompts, with their group."""
    shown: dict[int, int] = {}
    counts: dict[int, int] = {}
    for position, sample in enumerate(samples):
        if sample.group not in counts and len(counts) == MAX_GROUPS:
            continue
        counts[sample.group] = counts.get(sample.group, 0) + 1
        if counts[sample.group] <= MAX_RESPONSES:
            shown[position] = sample.group
    return shown
