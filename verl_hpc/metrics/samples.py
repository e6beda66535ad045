"""samples/step_000010.json: a few prompts with their responses, as text, for people to look at."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from verl_hpc.config.regular_file import make_directory, open_regular, replace_text
from verl_hpc.metrics.sample_limits import MAX_CHARACTERS, MAX_GROUPS, MAX_RESPONSES, cut, surplus
from verl_hpc.runs.records import parse_record

DIRECTORY = "samples"
_MOST_BYTES = 2 * MAX_GROUPS * (MAX_RESPONSES + 2) * (MAX_CHARACTERS + 100) * 12
_NAME = re.compile(r"step_(\d{6,12})\.json")

Kind = Literal["train", "evaluation"]
KINDS: tuple[Kind, ...] = get_args(Kind)

__all__ = [
    "KINDS",
    "MAX_GROUPS",
    "MAX_RESPONSES",
    "Kind",
    "SampleGroup",
    "SampleLog",
    "SampleResponse",
    "read_samples",
    "sample_steps",
]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampleResponse:
    """One response of the model.

    `score` is the scorer's, `advantage` the mean over the tokens, or None. `truncated` says whether
    the response reached the length limit, `version` is the step of the weights that began it, if
    known, and `stop_reason` what ended it: "length", a stop string, or the text of a token (empty
    in older files).
    """

    text: str
    score: float | None
    advantage: float | None
    truncated: bool
    version: int | None
    stop_reason: str = ""


@dataclass(frozen=True)
class SampleGroup:
    """A prompt, its ground truth, and the responses to it."""

    prompt: str
    ground_truth: str
    responses: Sequence[SampleResponse]


@dataclass(frozen=True)
class _StepSamples:
    """A file."""

    step: int
    train: Sequence[SampleGroup] | None = None
    evaluation: Sequence[SampleGroup] | None = None


class SampleLog:
    """Writes the samples of a run, a file a step. Belongs to rank 0.

    A file is ASCII in which JSON escapes everything else, so that no terminal obeys it. If one
    cannot be written (full disk, quota), that is logged once, and the run continues.
    """

    def __init__(self, run_directory: Path, resumed_from: int | None) -> None:
        """Remove files that are not valid any more.

        Args:
            run_directory: an existing directory.
            resumed_from: step of the checkpoint that training resumes from; files of later steps
                are removed. None starts over.
        """
        self._run_directory = run_directory
        self._fails = False
        last = -1 if resumed_from is None else resumed_from
        try:
            for step in sample_steps(run_directory):
                if step > last:
                    file_of(run_directory, step).unlink()
        except OSError as error:
            self._fail(error)
        left = sample_steps(run_directory)
        self._evaluated = {s for s in left if "evaluation" in read_samples(run_directory, s)}

    def write(self, step: int, kind: Kind, groups: Sequence[SampleGroup]) -> None:
        """Keep the first `MAX_GROUPS` groups with `MAX_RESPONSES` responses each, in place of the
        step's earlier ones of this kind."""
        if self._fails:
            return
        both = {**read_samples(self._run_directory, step), kind: groups}
        tree = {"step": step} | {
            name: [_as_tree(g) for g in both[name][:MAX_GROUPS]] for name in both
        }
        path = file_of(self._run_directory, step)
        try:
            make_directory(path.parent)
            replace_text(path, json.dumps(tree, allow_nan=False) + "\n")
            if kind == "evaluation":
                self._evaluated.add(step)
            for old in surplus(sample_steps(self._run_directory), self._evaluated):
                file_of(self._run_directory, old).unlink()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        _logger.warning("samples of responses end here: %s", error)
        self._fails = True


def file_of(run_directory: Path, step: int) -> Path:
    """Return the file for a step's samples."""
    return run_directory / DIRECTORY / f"step_{step:06d}.json"


def sample_steps(run_directory: Path) -> list[int]:
    """Return the steps that have samples, in order."""
    try:
        names = [path.name for path in (run_directory / DIRECTORY).iterdir()]
    except OSError:
        return []
    return sorted(int(name[1]) for name in map(_NAME.fullmatch, names) if name is not None)


def read_samples(run_directory: Path, step: int) -> dict[Kind, list[SampleGroup]]:
    """Return a step's groups by kind; empty if the file is missing, foreign or broken."""
    try:
        with open_regular(file_of(run_directory, step)) as file:
            step_samples = vars(parse_record(file.read(_MOST_BYTES + 1), _StepSamples))
        return {kind: step_samples[kind] for kind in KINDS if step_samples[kind] is not None}
    except (OSError, ValueError):
        return {}


def _as_tree(group: SampleGroup) -> dict[str, Any]:
    return {
        "prompt": cut(group.prompt),
        "ground_truth": cut(group.ground_truth),
        "responses": [
            {
                "text": cut(response.text),
                "score": _number(response.score),
                "advantage": _number(response.advantage),
                "truncated": response.truncated,
                "version": response.version,
                "stop_reason": response.stop_reason,
            }
            for response in group.responses[:MAX_RESPONSES]
        ],
    }


def _number(value: float | None) -> float | str | None:
    """Return the name of NaN or an infinity, which JSON lacks; other values unchanged."""
    return value if value is None or math.isfinite(value) else str(value)
