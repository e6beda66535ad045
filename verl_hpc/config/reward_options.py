"""Options of the reward functions that have some of their own."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from verl_hpc.section import Finite, NonNegative, Options, PathText, Positive, Seconds, Section


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"no regular expression ({error})") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_check_pattern)]


class FormatOptions(Section):
    """1 for a response of a form, else 0."""

    pattern: Pattern | None = None
    """A regular expression that the whole response matches; `.` also matches line ends."""
    tags: list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]] = []
    """In place of pattern: the response is <TAG>...</TAG> for each tag in this order, each once,
    with white space between."""

    @model_validator(mode="after")
    def _says_one(self) -> FormatOptions:
        if (self.pattern is None) == (not self.tags):
            raise ValueError("give a pattern, or tags, and not both")
        return self


class LengthOptions(Section):
    """A penalty between 0 and -1 by the number of tokens of a response."""

    cap: Positive | None = None
    """0 up to cap - buffer tokens, from there linearly down to -1 at cap (DAPO's soft overlong
    punishment, arXiv 2503.14476, equation 13)."""
    buffer: Positive | None = None
    """Tokens before cap over which the penalty grows; null takes a fourth of cap."""
    target: NonNegative | None = None
    """In place of cap: 0 at target tokens, linearly down to -1 at width tokens less or more (LCPO,
    arXiv 2503.04697, bounded)."""
    width: Positive | None = None
    """Tokens on either side of target over which the penalty grows; null takes target itself."""

    @model_validator(mode="after")
    def _says_one(self) -> LengthOptions:
        if (self.cap is None) == (self.target is None):
            raise ValueError("give cap, or target, and not both")
        if self.cap is None and self.buffer is not None:
            raise ValueError("buffer belongs to cap")
        if self.target is None and self.width is not None:
            raise ValueError("width belongs to target")
        if self.cap is not None and self.buffer is not None and self.buffer > self.cap:
            raise ValueError(f"buffer = {self.buffer} is more than cap = {self.cap}")
        if self.target == 0 and self.width is None:
            raise ValueError("target = 0 needs a width")
        return self


class MultipleChoiceOptions(Section):
    """1 for the letter of the right answer, else 0."""

    choices: str = "choices"
    """Column of the row, or field of its extra_info, with the texts of the answers: a list, or a
    mapping from letters. A row without it has letters from A to Z."""


class CodeOptions(Section):
    """Run the response's program, and compare what it does with the row's tests."""

    score: Literal["all", "share"] = "all"
    """all: 1 if every test passes, and the first that does not ends the work; share: the share of
    tests that pass."""
    containment: Literal["auto", "bubblewrap", "limits"] = "auto"
    """How programs are kept apart: bubblewrap has namespaces, limits only limits of resources and a
    filter of system calls (docs/rewards.md says what that does not contain), auto the first that
    works here."""
    python: PathText | None = None
    """Interpreter of the programs; null takes that of the run."""
    paths: list[PathText] = []
    """Directories besides those of the interpreter and the system that programs may read."""
    max_concurrent: Positive = 4
    """Programs that a rank runs at a time."""
    timeout_s: Seconds = 10.0
    """Longest that one program may run."""
    total_s: Seconds = 60.0
    """Longest that a response may take, all its tests together; the next one counts as timed out.
    In place of reward.timeout_s."""
    cpu_s: Seconds = 10.0
    """Processor time of a program."""
    memory_mib: Annotated[Positive, Field(ge=64)] = 1024
    """Memory of a program."""
    threads: Positive = 64
    """Threads of a program, which may start no other process."""
    files_mib: Positive = 64
    """Size of the program's directory, where it may write; with containment: limits of a file."""
    output_kib: Positive = 1024
    """Bytes that a program may print, to its output and as many to its error output."""


def _check_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        raise ValueError("no address; expected such as http://node17:8000/v1")
    return url.rstrip("/")


class JudgeOptions(Section):
    """Ask a model at an OpenAI-compatible address for a score."""

    base_url: Annotated[str, AfterValidator(_check_url)]
    """Address of the service, up to and with /v1; /chat/completions is added."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model there."""
    prompt: Annotated[str, Field(pattern=r"\{response\}")]
    """Question to the model; {response}, {prompt}, {ground_truth} and {data_source} stand for the
    row's."""
    system: str | None = None
    """A system message before it."""
    pattern: Pattern | None = None
    """A regular expression whose first group is the score; the last match in the answer counts.
    null reads a verdict in the usual forms: Score: 7/10, [[7]], {"score": 7}, Verdict: not correct
    (docs/reward_functions.md), and no prose."""
    minimum: Finite = 0.0
    """Smallest score; an answer below it is malformed."""
    maximum: Finite = 1.0
    """Largest score; an answer above it is malformed."""
    variable: str | None = None
    """Environment variable that holds the key; the site profile's pass_environment brings it to the
    ranks. null sends none."""
    parameters: Options = {"temperature": 0.0}
    """Further fields of the request, such as max_tokens."""
    timeout_s: Seconds = 60.0
    """Longest that one request may take."""
    retries: Annotated[NonNegative, Field(le=20)] = 3
    """Requests after the first, where one fails or its answer is malformed."""
    backoff_s: Seconds = 1.0
    """Wait before the first retry, doubled before each further one, up to a minute."""
    max_concurrent: Annotated[Positive, Field(le=1024)] = 16
    """Requests that a rank has open at a time."""

    @model_validator(mode="after")
    def _names_a_variable(self) -> JudgeOptions:
        # An error of the field would print its value, which may be the key itself.
        if self.variable is not None and not re.fullmatch("[A-Z_][A-Z0-9_]{0,99}", self.variable):
            raise ValueError(
                "variable: names no environment variable, such as JUDGE_KEY; give the variable's "
                "name and not what it holds"
            )
        return self

    @model_validator(mode="after")
    def _has_a_score(self) -> JudgeOptions:
        if self.pattern is not None and re.compile(self.pattern).groups < 1:
            raise ValueError(f"pattern = {self.pattern}: needs a group, in ( ), around the score")
        if self.minimum >= self.maximum:
            raise ValueError(f"minimum = {self.minimum:g} is not below maximum = {self.maximum:g}")
        return self
