"""Show samples of a run as HTML. A model's words are plain text on the page, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from verl_hpc.metrics.samples import Kind, SampleGroup, SampleResponse, read_samples, sample_steps
from verl_hpc.metrics.sections import section
from verl_hpc.metrics.session_view import label, score_words, session_tree, text_below
from verl_hpc.metrics.text import number, visible

TITLES: dict[Kind, str] = {"train": "Training", "evaluation": "Evaluation"}
_SUMMARY = 200
"""Most characters of a prompt in the heading of a closed group."""


def step_samples(run_directory: Path, step: int) -> str:
    """Return all groups of a step, open."""
    return "".join(
        section(f"{TITLES[kind]}, step {step}", _groups(groups, is_open=True))
        for kind, groups in read_samples(run_directory, step).items()
    )


def newest_samples(run_directory: Path) -> str:
    """Return the groups of the newest training step and of the newest evaluation with any, closed;
    empty without samples."""
    parts: dict[Kind, str] = {}
    for step in reversed(sample_steps(run_directory)):
        for kind, groups in read_samples(run_directory, step).items():
            if kind not in parts and groups:
                title = f"<h3>{TITLES[kind]}, step {step}</h3>"
                parts[kind] = title + _groups(groups, is_open=False)
        if len(parts) == len(TITLES):
            break
    return (
        section("Samples", "".join(parts[kind] for kind in TITLES if kind in parts))
        if parts
        else ""
    )


def _groups(groups: Sequence[SampleGroup], *, is_open: bool) -> str:
    return "".join(_group(group, i, is_open=is_open) for i, group in enumerate(groups, 1))


def _group(group: SampleGroup, place: int, *, is_open: bool) -> str:
    scores = ", ".join(number(branches[0].score) for branches in group.sessions)
    start = " ".join(visible(group.prompt).split())
    short = start if len(start) <= _SUMMARY else f"{start[:_SUMMARY]} ..."
    told = f"<small>scores {scores}</small>" if group.responses else ""
    opened = " open" if is_open else ""
    responses = (_response(branches, i) for i, branches in enumerate(group.sessions, 1))
    return (
        f'<details class="sample"{opened}><summary>Prompt {place} <q>{escape(short)}</q>{told}'
        f"</summary>{text_below('prompt', group.prompt)}"
        f"{text_below('ground truth', group.ground_truth)}"
        f"{''.join(responses)}</details>"
    )


def _response(branches: Sequence[SampleResponse], place: int) -> str:
    response, words = branches[0], [f"<b>response {place}</b>"]
    if response.session is not None:
        return session_tree(branches, words)
    words += score_words(response)
    if response.truncated:
        words.append('<b class="cut">ended by the length limit</b>')
    elif response.stop_reason:
        words.append(f"ended by {escape(visible(response.stop_reason))}")
    return text_below(label(words), response.text)
