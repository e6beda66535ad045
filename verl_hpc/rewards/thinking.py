"""Where a response with a part for thinking has its answer."""

from __future__ import annotations

import re

BEGIN, END = "<think>", "</think>"
TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
"""An answer between tags, in which neither tag occurs again."""


def behind_thinking(response: str) -> str:
    """What follows the last end of thinking; the whole response where there is none."""
    return response.rpartition(END)[2]


def answering_parts(response: str) -> list[str]:
    """Where to look for an answer, the first place first: behind </think>, then everywhere."""
    behind = behind_thinking(response)
    return [behind, response] if len(behind) < len(response) and behind.strip() else [response]
