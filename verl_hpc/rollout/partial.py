"""Partial responses, which a later call continues, perhaps with newer weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from verl_hpc.rollout.protocol import Response


class ResponseId(NamedTuple):
    """Identifies a response of a run, independently of the ranks that generate it."""

    purpose: str
    """Purpose of the response, such as rollout, or greedy."""
    step: int
    slot: int
    """Index in the step."""
    num_slots: int
    """Responses of this purpose in the step."""


def versioned(response: Response, begun: Response, version: int) -> Response:
    """Return a response with the version of each token's weights.

    Args:
        begun: what there was of it, with versions.
        version: of the weights that sampled the rest.
    """
    new = len(response.tokens) - len(begun.versions)
    return replace(response, versions=begun.versions + (version,) * new)


def continued(prefix: Response, new: Response) -> Response:
    """Append newly generated tokens to `prefix`; every token keeps its log-prob and experts."""
    mask = None if prefix.mask is None and new.mask is None else prefix.sampled + new.sampled
    tokens, log_probs = prefix.tokens + new.tokens, prefix.log_probs + new.log_probs
    parts = [r.experts for r in (prefix, new) if r.experts is not None]
    experts = np.concatenate(parts) if parts else None
    return Response(tokens, log_probs, new.finish_reason, mask, experts)


def observed(response: Response, tokens: Sequence[int]) -> Response:
    """Append an observation, which the model did not sample, to `response`, which becomes
    unfinished."""
    mask = response.sampled + (0,) * len(tokens)
    log_probs = response.log_probs + (0.0,) * len(tokens)
    longer = (*response.tokens, *tokens)
    return replace(
        response, tokens=longer, log_probs=log_probs, finish_reason="unfinished", mask=mask
    )


def this_turn(response: Response) -> Sequence[int]:
    """Return the tokens that the model sampled after the last observation."""
    last = max((i for i, own in enumerate(response.sampled) if not own), default=-1)
    return response.tokens[last + 1 :]
