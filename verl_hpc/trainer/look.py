"""A few prompts and responses of a step, as text for people to read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from verl_hpc.generation.answers import stop_reason
from verl_hpc.metrics.samples import (
    MAX_GROUPS,
    MAX_RESPONSES,
    SampleGroup,
    SampleResponse,
    SampleSession,
    SampleTurn,
)
from verl_hpc.rollout.record import SessionRecord
from verl_hpc.step.batch import (
    ADVANTAGES,
    TOKENS,
    VERSIONS,
    Columns,
    Sample,
    Samples,
    Scores,
    StepRows,
)
from verl_hpc.step.problems import StepProblems
from verl_hpc.trainer.context import RunContext

Part = dict[int, dict[str, Any]]
"""What one rank knows of the shown samples, by position: fields of `SampleResponse`, and where the
text is also its group, prompt and ground_truth; spans are the places of a session's turns in the
response, and rewards those of its tokens."""


def step_samples(run: RunContext, values: Mapping[str, Any]) -> Part:
    """Return this rank's part of a step's first few prompts; empty unless it leads a group."""
    samples, sequences = values.get("samples"), values.get("sequences")
    # `asked` is there where prompts are left out and others asked instead.
    rows = values.get("asked", values.get("rows"))
    here = [place for place in run.places.values() if place.is_here and place.leads_group]
    if run.rollout is None or not here or not isinstance(samples, Samples):
        return {}
    part = _first(samples)
    if run.rollout.place in here and isinstance(sequences, Columns):
        assert isinstance(rows, StepRows)
        _add_texts(part, run, run.settings.problems, rows, samples, sequences)
    advantages, scores = values.get("advantages"), values.get("scores")
    if isinstance(advantages, Columns):
        for i, row in zip(advantages.positions, advantages[ADVANTAGES], strict=True):
            if i in part and len(row):
                part[i]["advantage"] = float(row.mean())
    if isinstance(scores, Scores) and any(place.leads for place in here):
        _add_scores(part, scores)
    return part


def answer_samples(
    run: RunContext,
    problems: StepProblems,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
) -> list[SampleGroup]:
    """Return the first few answers that this rank's engine generated, with their scores."""
    part = _first(samples)
    _add_texts(part, run, problems, rows, samples, sequences)
    _add_scores(part, scores)
    return join_samples([part])


def join_samples(parts: Iterable[Part]) -> list[SampleGroup]:
    """Join all ranks' parts, by prompt."""
    by_position: Part = {}
    for part in parts:
        for position, fields in part.items():
            by_position.setdefault(position, {"score": None, "advantage": None}).update(fields)
    prompts: dict[int, tuple[str, str]] = {}
    responses: dict[int, list[SampleResponse]] = {}
    for _, fields in sorted(by_position.items()):
        if "text" in fields:
            group = fields.pop("group")
            prompt, truth = fields.pop("prompt"), fields.pop("ground_truth")
            # Branches of a session may have others than its first one.
            prompts.setdefault(group, (prompt, truth))
            rewards, spans = fields.pop("rewards", {}), fields.pop("spans", ())
            if spans:
                fields["turns"] = _rewarded(fields["turns"], spans, rewards, prompts[group][0])
            responses.setdefault(group, []).append(SampleResponse(**fields))
    return [SampleGroup(*prompts[group], responses[group]) for group in sorted(prompts)]


def _add_scores(part: Part, scores: Scores) -> None:
    for i, fields in part.items():
        fields["score"] = scores.values[i]
        fields["rewards"] = scores.per_token.get(i, {})


def _rewarded(
    turns: Iterable[SampleTurn],
    spans: Iterable[tuple[int, int]],
    rewards: Mapping[int, float],
    prompt: str,
) -> list[SampleTurn]:
    """Return the turns of a response with their rewards, and what was said before them unless it is
    the prompt of all."""
    told = []
    for turn, (start, stop) in zip(turns, spans, strict=True):
        earned = [value for place, value in rewards.items() if start <= place < stop]
        reward = math.fsum(earned) if rewards else None
        before = "" if turn.parent is None and turn.before == prompt else turn.before
        told.append(replace(turn, reward=reward, before=before))
    return told


def _first(samples: Samples) -> Part:
    """Return empty fields of the first responses to the first prompts."""
    shown: Part = {}
    counts: dict[int, int] = {}
    for position, sample in enumerate(samples.samples):
        if sample.group not in counts and len(counts) == MAX_GROUPS:
            continue
        counts[sample.group] = counts.get(sample.group, 0) + 1
        if counts[sample.group] <= MAX_RESPONSES:
            shown[position] = {}
    return shown


def _add_texts(
    part: Part,
    run: RunContext,
    problems: StepProblems,
    rows: StepRows,
    samples: Samples,
    sequences: Columns,
) -> None:
    """Decode the shown prompts and responses that this rank's engine generated."""
    assert run.rollout is not None
    recorded = sequences.values.get(VERSIONS, [()] * len(sequences.positions))
    for position, tokens, versions in zip(
        sequences.positions, sequences[TOKENS], recorded, strict=True
    ):
        if position in part:
            sample = samples.samples[position]
            part[position] |= texts_of(run, problems, rows.rows[sample.group], sample, tokens)
            part[position]["group"] = sample.group
            version = int(versions[0]) if len(versions) else run.rollout.version
            part[position]["version"] = version
            if position in sequences.records:
                record = sequences.records[position]
                part[position] |= _session(run, record, tokens, sample.prompt_length)


def _session(
    run: RunContext, record: SessionRecord, tokens: torch.Tensor, prompt_length: int
) -> dict[str, Any]:
    """Return turns, spans and session of a response to a program or an environment, whose text is
    that of its turns.

    Args:
        tokens: of prompt and response.
    """
    turns, spans = [], []
    for number in record.own_turns:
        turn = record.turns[number]
        parent = record.turns[turn.parent] if turn.parent is not None else None
        begin, since = (parent.stop, parent.ended) if parent is not None else (0, record.begun)
        before, text = tokens[begin : turn.start].tolist(), tokens[turn.start : turn.stop].tolist()
        turns.append(
            SampleTurn(
                number,
                turn.parent,
                before=str(run.tokenizer.decode(before)),
                text=str(run.tokenizer.decode(text)),
                calls=turn.calls,
                reward=None,
                num_tokens=turn.stop - turn.start,
                model_s=turn.ended - turn.begun,
                program_s=max(turn.begun - since, 0.0),
                finish_reason=turn.finish_reason,
                begun=turn.begun,
            )
        )
        spans.append((turn.start - prompt_length, turn.stop - prompt_length))
    fields = {"text": "", "turns": turns, "spans": spans, "num_turns": len(turns)}
    if record.row == 0:
        told = record.ending, record.failure, record.output, len(record.turns), len(record.leaves)
        fields["session"] = SampleSession(*told, record.model_s, record.program_s, record.begun)
    return fields | {"branch": record.row}


def texts_of(
    run: RunContext, problems: StepProblems, row: int, sample: Sample, tokens: torch.Tensor
) -> dict[str, Any]:
    """Return prompt, ground_truth and text of a response, and how it ended (truncated,
    stop_reason)."""
    decode, prompt = run.tokenizer.decode, tokens[: sample.prompt_length].tolist()
    answer = tokens[sample.prompt_length :].tolist()
    (problem,) = problems.read([row])
    stop = run.config.rollout.stop
    return {
        "prompt": str(decode(prompt)),
        "ground_truth": str(problem.ground_truth),
        "text": str(decode(answer)),
        "truncated": sample.truncated,
        "stop_reason": stop_reason(run.tokenizer, answer, sample.truncated, stop),
    }
