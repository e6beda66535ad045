"""samples/: bounded, true after a resume, and inert."""

from __future__ import annotations

import logging
import math
import os
from itertools import pairwise
from pathlib import Path

import pytest

from verl_hpc.metrics import samples
from verl_hpc.metrics.samples import (
    MAX_CHARACTERS,
    MAX_GROUPS,
    MAX_RESPONSES,
    MAX_STEPS,
    NEWEST_STEPS,
    SampleGroup,
    SampleLog,
    SampleResponse,
    cut,
    read_samples,
    sample_steps,
)

EVIL = "</script><img src=x onerror='alert(1)'>\x1b[2J\x9b31m\u202e\ud800 \U0001f600"

RESPONSE = (
    b'{"train": [{"prompt": "", "ground_truth": "", "responses": [{"text": "", "score": null, '
    b'"advantage": null, "truncated": false, "version": %b}]}]}'
)


def response(text: str = "4", score: float | None = 1.0, version: int | None = 3) -> SampleResponse:
    return SampleResponse(text, score, 0.5, False, version)


def group(prompt: str = "2+2=", num_responses: int = 2) -> SampleGroup:
    return SampleGroup(prompt, "4", [response() for _ in range(num_responses)])


def names(directory: Path) -> list[str]:
    return [path.name for path in (directory / "samples").iterdir()]


def step_file(directory: Path, step: int) -> Path:
    return directory / "samples" / f"step_{step:06d}.json"


def test_what_is_written_is_read(tmp_path):
    assert sample_steps(tmp_path / "none") == []
    assert read_samples(tmp_path, 10) == {}
    log = SampleLog(tmp_path, None)
    answers = [response("four", None, None), SampleResponse("5", -1.5, math.inf, True, 0, "length")]
    trained = SampleGroup(EVIL, "4", answers)
    log.write(10, "train", [trained])
    log.write(10, "evaluation", [group("3+3=")])
    assert read_samples(tmp_path, 10) == {"train": [trained], "evaluation": [group("3+3=")]}
    log.write(10, "train", [group()])
    assert read_samples(tmp_path, 10) == {"train": [group()], "evaluation": [group("3+3=")]}
    assert names(tmp_path) == ["step_000010.json"]


def test_a_terminal_obeys_nothing_in_a_file_and_nan_is_told(tmp_path):
    evil = SampleGroup(EVIL, "4", [response(score=math.nan)])
    SampleLog(tmp_path, None).write(1, "train", [evil])
    data = step_file(tmp_path, 1).read_bytes()
    assert all(32 <= byte < 127 for byte in data.rstrip(b"\n"))
    (found,) = read_samples(tmp_path, 1)["train"]
    assert math.isnan(found.responses[0].score)


def test_a_step_keeps_so_many_groups_and_responses(tmp_path):
    log = SampleLog(tmp_path, None)
    log.write(1, "train", [group(str(i), num_responses=20) for i in range(9)])
    found = read_samples(tmp_path, 1)["train"]
    assert [g.prompt for g in found] == [str(i) for i in range(MAX_GROUPS)]
    assert [len(g.responses) for g in found] == [MAX_RESPONSES] * MAX_GROUPS


@pytest.mark.parametrize("length", [0, MAX_CHARACTERS, MAX_CHARACTERS + 1, 10**7])
def test_a_long_text_keeps_its_ends_and_says_so(length):
    text = "a" * (length // 2) + "b" * (length - length // 2)
    kept = cut(text)
    assert len(kept) <= MAX_CHARACTERS
    if length <= MAX_CHARACTERS:
        assert kept == text
        return
    head, middle, tail = kept.split("\n")
    assert (set(head), set(tail)) == ({"a"}, {"b"})
    assert middle == f"[... {length - len(head) - len(tail):,} characters cut ...]"
    assert len(kept) > MAX_CHARACTERS - 50


def test_the_largest_file_can_be_read(tmp_path):
    text = "\U0001f600" * 10_000
    whole = SampleGroup(text, text, [response(text, 1 / 3)] * 20)
    log = SampleLog(tmp_path, None)
    log.write(1, "train", [whole] * 9)
    log.write(1, "evaluation", [whole] * 9)
    assert step_file(tmp_path, 1).stat().st_size > 3_000_000
    assert [len(groups) for groups in read_samples(tmp_path, 1).values()] == [4, 4]


def test_a_long_run_keeps_so_many_steps(tmp_path):
    log = SampleLog(tmp_path, None)
    for step in range(1, 601):
        log.write(step, "train", [group()])
        assert len(sample_steps(tmp_path)) == min(step, MAX_STEPS)
    steps = sample_steps(tmp_path)
    assert (steps[0], steps[-NEWEST_STEPS:]) == (1, list(range(591, 601)))
    gaps = [b - a for a, b in pairwise(steps[:-NEWEST_STEPS])]
    assert max(gaps) <= 4 * 600 / (MAX_STEPS - NEWEST_STEPS)
    assert len(names(tmp_path)) == MAX_STEPS


def test_steps_with_an_evaluation_stay(tmp_path):
    for first in (1, 151):  # the second is a run that resumes
        log = SampleLog(tmp_path, first - 1)
        for step in range(first, first + 150):
            log.write(step, "train", [group()])
            if step % 50 == 7:
                log.write(step, "evaluation", [group()])
    assert {7, 57, 107, 157, 207, 257} <= set(sample_steps(tmp_path))
    assert len(sample_steps(tmp_path)) == MAX_STEPS


def test_the_newest_evaluation_stays_where_all_steps_had_one(tmp_path):
    log = SampleLog(tmp_path, None)
    for step in range(1, 200):
        log.write(step, "evaluation" if step <= 100 else "train", [group()])
    steps = sample_steps(tmp_path)
    assert len(steps) == MAX_STEPS
    assert {1, 100, *range(190, 200)} <= set(steps)


@pytest.mark.parametrize(("resumed_from", "left"), [(None, []), (0, [0]), (2, [0, 1, 2])])
def test_resuming_drops_the_steps_that_are_done_again(tmp_path, resumed_from, left):
    log = SampleLog(tmp_path, None)
    for step in range(5):
        log.write(step, "evaluation", [group()])
    (tmp_path / "samples" / "notes.txt").write_text("mine")
    SampleLog(tmp_path, resumed_from)
    assert sample_steps(tmp_path) == left
    assert (tmp_path / "samples" / "notes.txt").exists()


def test_a_disk_that_fills_is_said_once(tmp_path, monkeypatch, caplog):
    log = SampleLog(tmp_path, None)
    log.write(1, "train", [group()])
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(samples, "replace_text", _full)
        log.write(2, "train", [group()])
        log.write(3, "train", [group()])
    assert sample_steps(tmp_path) == [1]
    (record,) = caplog.records
    assert record.message == "samples of responses end here: [Errno 28] No space left on device"


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b'{"step": 1, "train": [{"prompt"',
        b"\xff\xfe",
        b"7",
        b'"train"',
        b'{"train": 7}',
        b'{"train": [[]]}',
        b"[" * 100_000,
        b" " * 6_000_000 + b"{}",
        b'{"train": [{"prompt": "", "ground_truth": "", "responses": [{"version": 1e999}]}]}',
        RESPONSE % b"1e999",
        RESPONSE % b"[]",
    ],
)
def test_files_that_are_no_samples_have_none(tmp_path, foreign):
    log = SampleLog(tmp_path, None)
    step_file(tmp_path, 1).write_bytes(foreign)
    assert read_samples(tmp_path, 1) == {}
    log.write(1, "train", [group()])
    assert read_samples(tmp_path, 1) == {"train": [group()]}


def test_links_and_pipes_are_not_followed(tmp_path):
    log = SampleLog(tmp_path, None)
    log.write(1, "train", [group()])
    step_file(tmp_path, 2).symlink_to(step_file(tmp_path, 1))
    os.mkfifo(step_file(tmp_path, 3))
    assert read_samples(tmp_path, 2) == read_samples(tmp_path, 3) == {}
    for step in (2, 3):
        log.write(step, "train", [group(str(step))])
    assert [read_samples(tmp_path, s)["train"][0].prompt for s in (1, 2, 3)] == ["2+2=", "2", "3"]
