"""Score the form of a response."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, model_validator

from verl_hpc.rewards.request import RewardFunction
from verl_hpc.section import Pattern, Section


class Options(Section):
    """1 for a response of a form, else 0."""

    pattern: Pattern | None = None
    """A regular expression that the whole response matches; `.` also matches line ends."""
    tags: list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]] = []
    """In place of pattern: the response is <TAG>...</TAG> for each tag in this order, each once,
    with white space between."""

    @model_validator(mode="after")
    def _says_one(self) -> Options:
        if (self.pattern is None) == (not self.tags):
            raise ValueError("give a pattern, or tags, and not both")
        return self


def make(options: Options) -> RewardFunction:
    """Make a function that gives 1 if the options match a whole response, except white space at its
    ends, else 0."""
    # Each tag occurs once, and no other tag inside a pair of tags.
    inside = rf"(?:(?!</?(?:{'|'.join(options.tags)})>).)*"
    tags = r"\s*".join(f"<{tag}>{inside}</{tag}>" for tag in options.tags)
    form = re.compile(options.pattern or tags, re.DOTALL)

    def compute_score(solution_str: str) -> float:
        return float(any(form.fullmatch(text) for text in (solution_str, solution_str.strip())))

    return compute_score
