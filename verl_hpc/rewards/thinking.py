"""Where a response with a part for thinking has its answer."""

from __future__ import annotations

_END = "</think>"


def answering_parts(response: str) -> list[str]:
    """Where to look for an answer, the first place first: behind </think>, then everywhere."""
    behind = response.rpartition(_END)[2]
    return [behind, response] if len(behind) < len(response) and behind.strip() else [response]
