r"""Score answers to mathematics problems: what the last \boxed{} of the response holds."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from verl_hpc.boxed import box_spans, last_boxed
from verl_hpc.errors import RewardError
from verl_hpc.rewards.boxes import joined_boxes
from verl_hpc.rewards.denials import denied_before, taken_back
from verl_hpc.rewards.formulas import equal, math_verify_library
from verl_hpc.rewards.numbers import MAGNITUDE, NUMBER
from verl_hpc.rewards.thinking import TAGGED, answering_parts
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

DATA_SOURCES = (
    *("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
    *("math", "math_dapo", "math_dapo_reasoning", "aime*", "numina_*"),
)
"""Those of verl. Their scores are 1 and 0, also where verl's DAPO gives 1 and -1."""
LONGEST = 1000
"""Most characters of an answer; longer ones are not read."""
_STATED = re.compile(
    r"(?i:\banswer(?!\w)(?:\sto\s(?:the|this)\s\w{1,20})?[*_]{0,2}\s{0,4}"
    r"(?:is|would be|must be|should be|:|=)"
    r"(?:\s(?:therefore|thus|then|simply|just|exactly|indeed))?[*_:]{0,3})"
    r"(?!\s{0,4}(?:not|never|neither)\b)\s{0,4}"
    # The next 'answer is' may stand in what follows this one.
    r"(?=(?P<formula>\$\$[^$]{1,1000}\$\$|\$(?:\\\$|[^$\n]){1,1000}\$|\\\([^\n]{1,1000}?\\\)"
    r"|\\\[[\s\S]{1,1000}?\\\])?(?P<words>[^\n]{0,1000}))"
)
_END = re.compile(
    # A comma ends no list of numbers, and what is taken back is not ended.
    r"[.!?](?=\s|$)|;(?=\s|$)(?!\s*[-$\\(]*\d)|,\s(?!\s*(?:and\s)?[-$\\(]*\d"
    r"|(?:or|no|wait|sorry|actually|possibly|maybe|perhaps)\b"
    r"|but (?:that|this|it) (?:is|was) (?:wrong|not|incorrect))|\s\((?!or\b|wrong)|\sand we\b|"
    r"\s(?:because|since|which|as|so|i mean)\b",
    re.IGNORECASE,
)
_ASKED = re.compile(r"[^.,;:!?]{0,60}\?")
"""Matches a question: The answer is 5? No."""
_MORE = re.compile(
    r"\s*(?:,\s*(?:or\b|and\b|[-$\\\d(])|or\b|and\b(?! we\b)|[;/+*-]\s*[$\\\d(]"
    r"|\((?:or|wrong|mod)\b"
    rf"|is (?:wrong|incorrect|not)\b|{MAGNITUDE}\b|(?:times|plus|minus|over|if|unless|when)\b"
    r"|for (?:even|odd|all)\b)",
    re.IGNORECASE,
)
"""Text after a formula that is no answer by itself: 5 or 6, 5 million, 5 if n is even."""


def compute_score(solution_str: str, ground_truth: Any, timeout_s: float = 5.0) -> float:
    r"""Return 1 for an answer that is mathematically equal to `ground_truth`, else 0.

    A response without \boxed{} or \fbox{} may have <answer> tags, or say 'the answer is ...'. A
    last box that is denied or not closed, an answer of more than 1,000 characters, and one that
    cannot be judged in `timeout_s` seconds, such as 9^{9^{9^9}}, are wrong.

    Raises:
        RewardError: the row has no ground truth, or a list or mapping.
    """
    return math(solution_str, ground_truth, timeout_s)["score"]


def math(solution_str: str, ground_truth: Any, timeout_s: float = 5.0) -> dict[str, float]:
    """Return `score` of `compute_score`, and for metrics why it is 0 if nothing was compared.

    Returns: `score`; `no_answer`, 1 if the response gives none, else 0; and `not_judged`, 1 if the
        answer is too long or takes too long, else 0.
    """
    several = isinstance(ground_truth, Collection) and not isinstance(ground_truth, str)
    if several or ground_truth is None or not str(ground_truth).strip():
        raise RewardError(f"ground_truth = {ground_truth!r:.100} is not an answer to compare with")
    truth = str(ground_truth)
    answer = extract_answer(solution_str)
    if answer is None:
        return _grades(no_answer=1.0)
    if len(answer) > LONGEST:
        return _grades(not_judged=1.0)
    math_verify_library()
    try:
        with time_limit(timeout_s):
            return _grades(score=float(equal(answer, last_boxed(truth) or truth)))
    except TimeLimitExceeded:
        return _grades(not_judged=1.0)


def _grades(**known: float) -> dict[str, float]:
    return dict.fromkeys(("score", "no_answer", "not_judged"), 0.0) | known


def extract_answer(response: str) -> str | None:
    r"""Return the text of the last box, or without boxes that of the last <answer> or 'answer is
    ...'.

    Text after </think> counts before the text in front of it.
    """
    return next(filter(None, map(_extract, answering_parts(response))), None)


def _extract(response: str) -> str | None:
    if "\\boxed" in response or "\\fbox" in response:
        return _boxed_answer(response)
    if tagged := TAGGED.findall(response):
        return tagged[-1].strip()
    for match in reversed(list(_STATED.finditer(response))):
        denied = denied_before(response, match.start()) or _ASKED.match(match["words"])
        if not denied and (answer := _answer(match)):
            start, end = match.span("formula" if match["formula"] else "words")
            end = end if match["formula"] else response.index(answer, start) + len(answer)
            return None if taken_back(response, end) else answer
    return None


def _boxed_answer(response: str) -> str | None:
    r"""Return what the last boxes hold: '2, 3' for '\boxed{2} and \boxed{3}'. None if they are not
    closed, denied, taken back, or one of two to choose from."""
    last, spans = last_boxed(response), box_spans(response)
    boxes = joined_boxes(response, spans, len(spans) - 1)
    if last is None or not boxes:
        return None
    return ", ".join([*(response[start:end].strip() for start, end in boxes[:-1]), last])


def _answer(found: re.Match[str]) -> str | None:
    """Return the formula, the number, or the words up to the end of the clause."""
    if formula := found["formula"]:
        return None if _MORE.match(found["words"]) else formula
    words = found["words"].strip("* ")
    if (number := NUMBER.match(words)) and _END.match(words, number.end()):
        return number[0]
    end = _END.search(words)
    return words[: end.start()] if end else words
