r"""Find boxes that are the answer, not those that words or a formula around them rule out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_hpc.boxed import Span
from verl_hpc.rewards.denials import taken_back
from verl_hpc.rewards.numbers import MAGNITUDE

_LONGEST_LEAD = 60
_UNBOXED = re.compile(
    r"""
    (?:
      (?:
        \b(?: not | never | cannot\ be | if\ it\ (?:is|was|were) | (?<!no\ )doubt[^.\n]{0,30}
            | don['\u2019]t\ (?:think|believe)[^.\n]{0,20}
            | (?:wrong|incorrect)\ (?:answer|result|value)\ (?:is|was|would\ be) )
        | n['\u2019]t(?:\ be)?
        # 4 or \boxed{5}, x = 4 or x = \boxed{5}
        | (?:\bor(?:\ else|\ maybe)? | \\text\s*\{\s*or\s*\})[\s$]*(?:[A-Za-z]\s*=)?
        | \\(?:neq?|pm|mp|[lg]eq?|[lg]t|times|cdot|ln|log|sin|cos|tan)(?![a-z]) | \u00b1
        | (?:[\d)}]|\b[A-Za-z])\s?[<>]
        | [(\[]\s*-?\d+\s*,
        # -\boxed{5}, and no dash before it
        | (?:^|[\s$(\[])[-\u2212](?=\\) | =\s*[-\u2212]
        | (?:[\d)}]|\b[A-Za-z])\s*[-\u2212/^]\{? | [\w)]\*(?!\*)
      )
      [\s$*]*(?:\\[(\[])?\s*
      | \d | \\(?:frac|sqrt)\s*(?:\{[^{}]{0,20}\})?\{
    )
    \\(?:boxed|fbox)\s*\{?\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Text before a box that is no answer: not \\boxed{5}, -\\boxed{5}, 2\\boxed{5}."""
_NOT_ALONE = re.compile(
    rf"""
    # In its formula: \boxed{{60}}^2 but for degrees, \boxed{{5}} + 3, \boxed{{12}}\pi, \boxed{{5}}x
    \}}?[ ]?
    (?: \^(?!\s*\{{?\s*\\circ)
      | [-+*/<>]\s?(?:\d|\\[a-z]|[B-HJ-Zb-z](?![A-Za-z]))
      | \\(?:pi|sqrt|frac|times|cdot|pm)(?![a-z]) | \\text\s*\{{\s*(?:or|and)\b
      | (?<!\s)[A-Za-z](?![A-Za-z]) | ,\s*-?\d+\s*[)\]] )
    | [}}\s$*]*(?:\\[)\]])?
    (?: \s*{MAGNITUDE}\b | \s*or\s+(?:else\s+|maybe\s+)?[$\\\d(-] | \s*and\s+\$?-?\d | \?
      | \s*\((?:wrong|incorrect|or|not(?=\)|\ (?:right|correct|sure)))\b
      | ,?\s*(?:(?:which|that|this)\s)?(?:is|was)\s+(?:wrong|incorrect|false)\b
      | \s*(?:is|was|can|could)(?:n['\u2019]t|\ ?not)\s+(?:be\ )?
        (?:right|correct|the\ answer|it)\b )
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Text after a box that is no answer by itself: \\boxed{5} is wrong, \\boxed{5}^2."""
_JOINED = re.compile(
    r"\}?[\s$]*(?:\\\)|\\\])?\s*(?:,\s*and\b|,|and\b|\\text\s*\{\s*,?\s*and\s*\})\s*(?:\\\(|\\\[)?[\s$]*(?:[A-Za-z]\s*=\s*)?"
    r"\\(?:boxed|fbox)\s*\{?\Z"
)
"""Text between two boxes that are one answer: \\boxed{2} and \\boxed{3}."""


def joined_boxes(text: str, spans: Sequence[Span], last: int) -> list[tuple[int, int]]:
    r"""Return a box with those before it that are joined to it, in order.

    '\boxed{2} and \boxed{3}' are both of the answer. Empty if the box is not closed, denied ('not
    \boxed{5}'), taken back, a part of a formula ('2\boxed{5}'), or one of two to choose from.

    Args:
        text: a response.
        spans: spans of its boxes.
        last: index of the box in `spans`.
    """
    boxes: list[tuple[int, int]] = []
    for start, end in reversed(spans[: last + 1]):
        if end is None or (boxes and not _is_joined(text, end, boxes[0][0])):
            break
        boxes.insert(0, (start, end))
    if not boxes:
        return []
    (start, _), (_, end) = boxes[0], boxes[-1]
    lead = text[max(0, start - _LONGEST_LEAD) : start]
    if _UNBOXED.search(lead) or _NOT_ALONE.match(text, end) or taken_back(text, end):
        return []
    return boxes


def _is_joined(text: str, end: int, start: int) -> bool:
    return end <= start and _JOINED.fullmatch(text, end, start) is not None
