"""Responses that are interrupted, and continued by another call, perhaps under newer weights."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.rollout.protocol import Response, Sampling

NOT_BEGUN = Response((), (), "unfinished")


def given_so_far(
    prefixes: Sequence[Response | None] | None, count: int, sampling: Sampling
) -> list[Response]:
    """What each of `count` responses begins with; nothing where there is no prefix."""
    given = [prefix or NOT_BEGUN for prefix in prefixes or [None] * count]
    assert len(given) == count, (len(given), count)
    for prefix in given:
        assert prefix.finish_reason == "unfinished", f"it has ended: {prefix.finish_reason}"
        assert len(prefix.tokens) == len(prefix.log_probs)
        assert len(prefix.tokens) < sampling.max_tokens, (len(prefix.tokens), sampling.max_tokens)
    return given


def continued(prefix: Response, new: Response) -> Response:
    """`prefix` and what was generated after it; every token keeps its log-prob."""
    return Response(prefix.tokens + new.tokens, prefix.log_probs + new.log_probs, new.finish_reason)
