"""Responses that are too long (DAPO, arXiv 2503.14476, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import model_validator

from verl_hpc.section import NonNegative, PositiveFinite, Section


class OverlongConfig(Section):
    """Treatment of responses that come near rollout.max_response_tokens, or are cut there."""

    buffer: NonNegative = 0
    """Tokens before the longest response in which a penalty on the score grows from 0 to `factor`
    (soft overlong punishment); 0 has no penalty."""
    factor: PositiveFinite = 1.0
    """The penalty of a response that uses the whole buffer."""
    leave_out: bool = False
    """Do not train on responses that are cut (overlong filtering); their scores still count in
    their group, but for opo and optimal_token_baseline, which weigh by tokens that are trained
    on."""

    @model_validator(mode="after")
    def _does_something(self) -> OverlongConfig:
        if not self.buffer and not self.leave_out:
            raise ValueError("overlong: does nothing; give a buffer, or leave_out: true")
        if not self.buffer and self.factor != type(self).model_fields["factor"].default:
            raise ValueError(f"factor = {self.factor:g} has no effect without a buffer; give one")
        return self


def overlong_penalties(
    lengths: Sequence[int], longest: int, buffer: int, factor: float
) -> list[float]:
    """min(-(length - (longest - buffer)) / buffer factor, 0) of each response, equation 13."""
    begin = longest - buffer
    return [min(-(length - begin) / buffer * factor, 0.0) for length in lengths]
