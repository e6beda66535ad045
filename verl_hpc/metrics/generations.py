"""evaluations/step_000010.jsonl: every answer of an evaluation, with its score.

One line per answer: rows may have different figures, and any reader of text, such as data.train,
can read it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from verl_hpc.config.regular_file import make_directory, open_regular, replace_file
from verl_hpc.errors import DataError
from verl_hpc.runs.records import parse_record

DIRECTORY = "evaluations"
_NAME = re.compile(r"step_(\d{6,12})\.jsonl")


@dataclass(frozen=True)
class Generation:
    """One answer."""

    step: int
    """Step of the weights that answered."""
    set: str
    row: int
    """Row of the problem in the set."""
    sample: int
    """Number of the answer among those to its prompt, from 0."""
    prompt: str
    """Prompt as the model got it, special tokens included."""
    ground_truth: str
    response: str
    num_tokens: int
    """Tokens of the response."""
    truncated: bool
    """Whether the response was cut at the length limit."""
    score: float
    extra: Mapping[str, float] = field(default_factory=dict)
    """Further figures of the reward function."""
    stop_reason: str = ""
    """What ended the response: "length", a stop string, or the text of a token; empty in older
    files."""


def file_of(run_directory: Path, step: int) -> Path:
    """Return the file for the answers of an evaluation."""
    return run_directory / DIRECTORY / f"step_{step:06d}.jsonl"


def generation_steps(run_directory: Path) -> list[int]:
    """Return the steps whose answers are saved, in order."""
    names = [path.name for path in _files(run_directory)]
    return sorted(int(name[1]) for name in map(_NAME.fullmatch, names) if name is not None)


def write_generations(run_directory: Path, step: int, lines: Iterable[str]) -> Path:
    """Write the lines (`line_of`) of an evaluation's answers to its file, replacing an older one.

    Raises:
        OSError: the file cannot be written; an older one then stays.
    """
    path = file_of(run_directory, step)
    make_directory(path.parent)
    replace_file(path, lines).close()
    return path


def line_of(generation: Generation) -> str:
    """Return an answer as a JSON object and a line break. NaN and infinities, which JSON lacks, are
    written by name; JSON escapes all but ASCII, so that no terminal obeys it."""
    extra = {n: v if math.isfinite(v) else str(v) for n, v in generation.extra.items()}
    return json.dumps({**asdict(generation), "extra": extra}, allow_nan=False) + "\n"


def forget_after(run_directory: Path, last: int) -> None:
    """Remove the answers of steps after `last`.

    Raises:
        OSError: they cannot be removed.
    """
    for step in generation_steps(run_directory):
        if step > last:
            file_of(run_directory, step).unlink()


def read_generations(run_directory: Path, step: int) -> Iterator[Generation]:
    """Yield the answers of an evaluation, in order of sets, rows and samples.

    Raises:
        DataError: the step has no answers, or a line is malformed.
    """
    path = file_of(run_directory, step)
    try:
        file = open_regular(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    with file:
        for number, line in enumerate(file, 1):
            try:
                generation = parse_record(line, Generation)
            except ValueError as error:
                raise DataError(
                    f"{path} line {number}: no answer that was saved here ({error}); evaluate again"
                ) from None
            yield generation


def _files(run_directory: Path) -> list[Path]:
    try:
        return list((run_directory / DIRECTORY).iterdir())
    except OSError:
        return []
