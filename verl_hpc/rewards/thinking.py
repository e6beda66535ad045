"""Find the answer in a response that has a part for thinking."""

from __future__ import annotations

import re

BEGIN, END = "<think>", "</think>"
TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
"""An answer between tags, in which neither tag occurs again."""


def behind_thinking(response: str) -> str:
    """Return the text after the last end of thinking, or the whole response without one."""
    return response.rpartition(END)[2]


def answering_parts(response: str) -> list[str]:
    """Return the texts in which to look for an answer, in order: after </think>, then all."""
    behind = behind_thinking(response)
    return [behind, response] if len(behind) < len(response) and behind.strip() else [response]
