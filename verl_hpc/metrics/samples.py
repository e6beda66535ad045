"""samples/step_000010.json: a few prompts with their responses, as text, for people to look at."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from verl_hpc.config.regular_file import make_directory, open_regular, replace_text
from verl_hpc.runs.records import parse_record

MAX_GROUPS = 4
"""Most prompts that are kept of a step's training, and as many of its evaluation."""
MAX_RESPONSES = 8
"""Most responses that are kept for one prompt."""
MAX_CHARACTERS = 4000
"""Most characters of a text; a longer one keeps its two ends, and a note of what was cut."""
MAX_TURNS = 64
"""Most turns that are kept for one prompt, in sessions with programs and environments."""
MAX_TURN_CHARACTERS = 1000
"""Most characters of what is said in a turn, and of what is said before it."""
MAX_CALLS = 8
"""Most calls of tools that are kept of a turn, with `MAX_CALL_CHARACTERS` each."""
MAX_CALL_CHARACTERS = 200
MAX_STEPS = 50
"""Most files, one per step. Together they have at most 2 x 4 x (2 + 8) x 4,000 x 50 = 16 million
characters of text, which is 16 MB in English and 192 MB if every one were written in 12 bytes, as
an emoji is. Sessions of 64 turns add at most 2 x 4 x (64 x 3,600 + 8 x 2,500) x 50 = 100 million
characters."""
NEWEST_STEPS = 10
"""Newest steps, which are never thinned out."""
_ROOM = 60
"""Characters for the note of what was cut."""
DIRECTORY = "samples"
_OF_TURNS = 2 * (MAX_TURN_CHARACTERS + _ROOM) + MAX_CALLS * MAX_CALL_CHARACTERS + 100
_OF_GROUP = (MAX_RESPONSES + 2) * (2 * MAX_CHARACTERS + 100) + MAX_TURNS * _OF_TURNS
_MOST_BYTES = 2 * MAX_GROUPS * _OF_GROUP * 12
_NAME = re.compile(r"step_(\d{6,12})\.json")

Kind = Literal["train", "evaluation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampleTurn:
    """A turn of the model in a session.

    `parent` is the number of the turn that it continues, `before` what was said to the model after
    that turn, or from the beginning, `calls` are those of tools, and `reward` is what the tokens of
    the turn earn, if they have rewards of their own. Between the turn before and this one
    `program_s` seconds passed, then `model_s` until it had ended. `begun` is when the model was
    asked, in seconds since the epoch; None in older files.
    """

    number: int
    parent: int | None
    before: str
    text: str
    calls: Sequence[str]
    reward: float | None
    num_tokens: int
    model_s: float
    program_s: float
    finish_reason: str
    begun: float | None = None


@dataclass(frozen=True)
class SampleSession:
    """A session of the model with a program or an environment: how it ended, what was wrong with
    the program, the end of its output, and when it began, in seconds since the epoch (None in older
    files)."""

    ending: str
    failure: str
    output: str
    num_turns: int
    num_branches: int
    model_s: float
    program_s: float
    begun: float | None = None


@dataclass(frozen=True)
class SampleResponse:
    """One response of the model, or one branch of its session with a program.

    `score` is the scorer's, `advantage` the mean over the tokens, or None. `truncated` says whether
    the response reached the length limit, `version` is the step of the weights that began it, if
    known, and `stop_reason` what ended it: "length", a stop string, or the text of a token (empty
    in older files). Of a session it has, in place of the text, the first `num_turns` turns that no
    branch before it has, if there is room for them; those of its other branches follow it.
    """

    text: str
    score: float | None
    advantage: float | None
    truncated: bool
    version: int | None
    stop_reason: str = ""
    turns: Sequence[SampleTurn] = field(default_factory=list)
    num_turns: int = 0
    branch: int = 0
    """Position among the branches of its session."""
    session: SampleSession | None = None


@dataclass(frozen=True)
class SampleGroup:
    """A prompt, its ground truth, and the responses to it."""

    prompt: str
    ground_truth: str
    responses: Sequence[SampleResponse]

    @property
    def sessions(self) -> list[list[SampleResponse]]:
        """The responses, each with the other branches of its session."""
        sessions: list[list[SampleResponse]] = []
        for response in self.responses:
            # Branches follow the first one of their session.
            if response.branch and sessions:
                sessions[-1].append(response)
            else:
                sessions.append([response])
        return sessions


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
        self._newest: tuple[int, Mapping[Kind, Sequence[SampleGroup]]] = (-1, {})
        """The step written last, and its groups."""
        last = -1 if resumed_from is None else resumed_from
        try:
            make_directory(run_directory / DIRECTORY)
            for step in sample_steps(run_directory):
                if step > last:
                    file_of(run_directory, step).unlink()
        except OSError as error:
            self._fail(error)
        self._steps = sample_steps(run_directory)
        self._evaluated = {
            step for step in self._steps if "evaluation" in read_samples(run_directory, step)
        }

    def write(self, step: int, kind: Kind, groups: Sequence[SampleGroup]) -> None:
        """Keep the first `MAX_GROUPS` groups with `MAX_RESPONSES` responses each, in place of the
        step's earlier ones of this kind."""
        if self._fails:
            return
        newest, both = self._newest
        if step != newest:
            both = read_samples(self._run_directory, step) if step in self._steps else {}
        both = {**both, kind: groups}
        tree: dict[str, Any] = {"step": step}
        for name, shown in both.items():
            tree[name] = [*map(_as_tree, shown[:MAX_GROUPS])]
        text = json.dumps(tree, allow_nan=False) + "\n"
        try:
            make_directory(self._run_directory / DIRECTORY)
            replace_text(file_of(self._run_directory, step), text)
            self._newest, self._steps = (step, both), sorted({*self._steps, step})
            if kind == "evaluation":
                self._evaluated.add(step)
            for old in surplus(self._steps, self._evaluated):
                file_of(self._run_directory, old).unlink(missing_ok=True)
                self._steps.remove(old)
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
    responses, room = [], MAX_TURNS
    for response in group.responses[:MAX_RESPONSES]:
        turns = [*map(_cut_turn, response.turns[:room])]
        room -= len(turns)
        tree = asdict(replace(response, text=cut(response.text), turns=turns))
        for scored in (tree, *tree["turns"]):
            # NaN and infinities, which JSON lacks, are written by name.
            for name in {"score", "advantage", "reward"} & scored.keys():
                if scored[name] is not None and not math.isfinite(scored[name]):
                    scored[name] = str(scored[name])
        responses.append(tree)
    prompt, truth = cut(group.prompt), cut(group.ground_truth)
    return {"prompt": prompt, "ground_truth": truth, "responses": responses}


def _cut_turn(turn: SampleTurn) -> SampleTurn:
    before, text = (cut(words, MAX_TURN_CHARACTERS) for words in (turn.before, turn.text))
    calls = [cut(call, MAX_CALL_CHARACTERS) for call in turn.calls[:MAX_CALLS]]
    return replace(turn, before=before, text=text, calls=calls)


def surplus(steps: Sequence[int], evaluated: Collection[int] = ()) -> list[int]:
    """Return the steps to forget if there are more than `MAX_STEPS`, in order.

    The first step and the `NEWEST_STEPS` last stay; of the others those go that leave the smallest
    gaps, steps with an evaluation after all others, and the newest of these last.
    """
    newest_evaluated = max(evaluated, default=None)
    kept, gone = list(steps), []

    def worth(i: int) -> tuple[bool, bool, int]:
        step = kept[i]
        return step in evaluated, step == newest_evaluated, kept[i + 1] - kept[i - 1]

    # Drop the step of least worth, never the first or one of the newest.
    while len(kept) > MAX_STEPS:
        gone.append(kept.pop(min(range(1, len(kept) - NEWEST_STEPS), key=worth)))
    return gone


def cut(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return at most so many characters of a text: its two ends, and between them how much is left
    out."""
    if len(text) <= most:
        return text
    half = (most - _ROOM) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters cut ...]\n{text[-half:]}"
