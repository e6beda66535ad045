"""Score the number of tokens of a response."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import model_validator

from verl_hpc.rewards.request import RewardFunction
from verl_hpc.section import NonNegative, Positive, Section


class Options(Section):
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
    def _says_one(self) -> Options:
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


def make(options: Options) -> RewardFunction:
    """Make a function that gives 0 for a wanted number of tokens, down to -1 for others."""

    def compute_score(response_ids: Sequence[int]) -> float:
        length = len(response_ids)
        if options.cap is not None:
            buffer = options.buffer or max(options.cap // 4, 1)
            return -min(max((length - (options.cap - buffer)) / buffer, 0.0), 1.0)
        assert options.target is not None
        return -min(abs(length - options.target) / (options.width or options.target), 1.0)

    return compute_score
