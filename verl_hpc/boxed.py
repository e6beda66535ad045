r"""Find what a text puts into a box: \boxed{42}, \fbox{42}, \boxed {42}, \boxed 42."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"(\\(?:boxed|fbox)(?![A-Za-z])\s{0,8}\{?)|\\.|[{}]", re.DOTALL)
_WITHOUT_BRACES = re.compile(r"([^$\n]{0,200}?)(?=\$|\\\)|\\\])|(\S+?)(?=[.,;:]*(?:\s|\Z))")
"""Contents of a box without braces: the rest of the formula, or a word outside of one."""

Span = tuple[int, int | None]
"""Beginning and end of a box's contents; the end is None if its brace is not closed."""


def box_spans(text: str) -> list[Span]:
    """All boxes in the order of their beginnings, nested ones too, in time linear in the text."""
    spans: list[Span] = []
    opened: list[int | None] = []
    for token in _TOKEN.finditer(text):
        if token[1]:
            if token[1].endswith("{"):
                opened.append(len(spans))
                spans.append((token.end(), None))
            elif bare := _WITHOUT_BRACES.match(text, token.end()):
                spans.append(bare.span(bare.lastindex or 0))
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened and (box := opened.pop()) is not None:
            spans[box] = (spans[box][0], token.start())
    return spans


def last_boxed(text: str) -> str | None:
    """Return what the last box that is not empty holds, with the boxes around it.

    None without a box, and if the brace of the last one is not closed.
    """
    filled = [(start, end) for start, end in box_spans(text) if text[start:end].strip()]
    if not filled or filled[-1][1] is None:
        return None
    start, end = next(span for span in filled if span[1] is not None and span[1] >= filled[-1][1])
    return text[start:end].strip()
