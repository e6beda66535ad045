"""Convert rows of public data sets to prompts and answers, by the names of their fields.

Fields are those of the releases on Hugging Face: openai/gsm8k; DigitalLearningGmbH/MATH-lighteval;
HuggingFaceH4/MATH-500; HuggingFaceH4/aime_2024, Maxwell-Jia/AIME_2024, opencompass/AIME2025 and
math-ai/aime25; Idavidrein/gpqa; cais/mmlu; TIGER-Lab/MMLU-Pro; allenai/ai2_arc;
open-r1/codeforces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from verl_hpc.boxed import last_boxed
from verl_hpc.data.order import permute

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """One row of a public data set."""

    question: str
    prompt: str
    """The question with instructions on the form of the answer."""
    ground_truth: str
    answer: str | None = None
    """The worked-out or worded answer, if the row has one."""
    options: Sequence[str] = ()
    """Texts to choose from, in the order of their letters."""


@dataclass(frozen=True)
class Recipe:
    """How the rows of one data set become verl's."""

    data_source: str
    read: Callable[[Row, int], Example]
    """Function of a row and the seed that shuffles options; raises ValueError for a malformed row.
    """
    ability: str = "math"
    splits: tuple[str, ...] = ()
    """Files, without their ending, that a directory must have; empty if the source is one file."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Fields that are kept in extra_info where a row has them, by their names there."""
    has_options: bool = False
    unfit: Callable[[Row], str | None] = lambda _: None
    """Function that returns why a row's answers cannot be scored; such rows are left out, and
    counted."""


_HASHES = 'Let\'s think step by step and output the final answer after "####".'
_BOXED = "Let's think step by step and output the final answer within \\boxed{}."
_PROGRAM = (
    "Write a Python program that solves it within the limits: it reads standard input and prints "
    "to standard output. Let's think step by step and end with the program in one ```python block."
)
_LETTER = "Let's think step by step and output the letter of the right option within \\boxed{}."


def text_of(row: Row, *fields: str) -> str:
    """Return the first of these fields that the row has.

    Raises:
        ValueError: it has none of them, or what it has is no text.
    """
    value = next((row[name] for name in fields if row.get(name) is not None), None)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"needs a text {' or '.join(map(repr, fields))}; fields are {_names(row)}")
    return value


def _names(row: Row) -> str:
    return ", ".join(map(str, row))


def number_after_hashes(answer: str) -> str | None:
    """Return the final number of a GSM8K answer, without commas: '... #### 1,200' gives '1200'."""
    number = re.search(r"#### (-?[0-9.,]+)", answer)
    return number[1].replace(",", "") if number else None


def whole_number(answer: Any) -> str | None:
    r"""An integer without leading zeros, as text: 25, '025' and '$25^\circ$' give '25'."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return str(answer)
    number = re.fullmatch(r"\$?\s*(-?\d+)(?:\.0)?\s*(?:\^\\circ|\^\{\\circ\})?\s*\$?", str(answer))
    return str(int(number[1])) if number else None


def _gsm8k(row: Row, _: int) -> Example:
    question, answer = text_of(row, "question"), text_of(row, "answer")
    ground_truth = number_after_hashes(answer)
    if ground_truth is None:
        raise ValueError("answer holds no #### NUMBER")
    return Example(question, f"{question} {_HASHES}", ground_truth, answer)


def _math(row: Row, _: int) -> Example:
    question, solution = text_of(row, "problem"), text_of(row, "solution")
    ground_truth = last_boxed(solution)
    if ground_truth is None:
        raise ValueError("solution holds no \\boxed{...}")
    return Example(question, f"{question} {_BOXED}", ground_truth, solution)


def _math_500(row: Row, _: int) -> Example:
    question, answer = text_of(row, "problem"), text_of(row, "answer")
    return Example(question, f"{question} {_BOXED}", answer.strip(), text_of(row, "solution"))


def _aime(row: Row, _: int) -> Example:
    question = text_of(row, "problem", "Problem", "question")
    worked = next((row[n] for n in ("solution", "Solution") if isinstance(row.get(n), str)), None)
    given = next((row[n] for n in ("answer", "Answer") if row.get(n) is not None), None)
    if given is None:
        given = last_boxed(worked) if worked is not None else None
    if given is None:
        raise ValueError(
            f"needs 'answer', or a 'solution' with \\boxed{{...}}; fields are {_names(row)}"
        )
    ground_truth = whole_number(given)
    if ground_truth is None:
        raise ValueError(f"answer = {given!r:.60} is no integer")
    return Example(question, f"{question} {_BOXED}", ground_truth, worked)


def multiple_choice(question: str, options: Sequence[Any], right: int, seed: int) -> Example:
    """Return a question with its options A, B, ... below it, in an order that follows from the seed
    and the question.

    Args:
        right: index of the right option.

    Raises:
        ValueError: options that are no texts, too few or too many, or none of them right.
    """
    if not all(isinstance(option, str) and option.strip() for option in options):
        raise ValueError("an option is no text, or an empty one")
    if not 2 <= len(options) <= len(ascii_uppercase):
        raise ValueError(f"{len(options)} options; from 2 to {len(ascii_uppercase)} have letters")
    if not 0 <= right < len(options):
        raise ValueError(f"the right option is number {right}, counted from 0, of {len(options)}")
    order = list(range(len(options)))
    permute(order, f"{seed}/{question}")
    shuffled = [options[number].strip() for number in order]
    letter = ascii_uppercase[order.index(right)]
    lines = [f"{a}) {option}" for a, option in zip(ascii_uppercase, shuffled, strict=False)]
    prompt = "\n".join([question.strip(), "", *lines, "", _LETTER])
    return Example(question, prompt, letter, options[right].strip(), shuffled)


def _gpqa(row: Row, seed: int) -> Example:
    right = text_of(row, "Correct Answer")
    wrong = [text_of(row, f"Incorrect Answer {number}") for number in (1, 2, 3)]
    return multiple_choice(text_of(row, "Question"), [right, *wrong], 0, seed)


def _mmlu(row: Row, seed: int) -> Example:
    """Read MMLU, with `choices` and the right one's number, or MMLU-Pro, with `options` and a
    letter."""
    options = next((row[n] for n in ("choices", "options") if row.get(n) is not None), None)
    if not isinstance(options, list):
        raise ValueError(f"needs a list 'choices' or 'options'; fields are {_names(row)}")
    answer, letters = row.get("answer"), list(ascii_uppercase[: len(options)])
    if answer in letters:
        return multiple_choice(text_of(row, "question"), options, letters.index(answer), seed)
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise ValueError(f"answer = {answer!r:.60}: expected a number from 0, or one of {letters}")
    return multiple_choice(text_of(row, "question"), options, answer, seed)


def _arc(row: Row, seed: int) -> Example:
    """Read ARC, whose `choices` hold `text` and `label`; labels are A, B, ... or 1, 2, ...."""
    choices = row.get("choices")
    parts = choices if isinstance(choices, Mapping) else {}
    texts, labels = parts.get("text"), parts.get("label")
    if not isinstance(texts, list) or not isinstance(labels, list):
        raise ValueError(f"needs 'choices' with lists 'text' and 'label'; fields are {_names(row)}")
    answer = row.get("answerKey")
    if len(texts) != len(labels) or answer not in labels:
        raise ValueError(
            f"answerKey = {answer!r:.60}: expected one of the labels {labels}, one for each of "
            f"{len(texts)} texts"
        )
    return multiple_choice(text_of(row, "question"), texts, labels.index(answer), seed)


def _codeforces(row: Row, _: int) -> Example:
    """Read Codeforces: a problem's statement in the order of the site, and its official tests."""
    question = text_of(row, "description")
    examples = [
        f"{_fenced(test, 'input')}\n{_fenced(test, 'output')}" for test in _tests(row, "examples")
    ]
    units = {"time_limit": "seconds", "memory_limit": "megabytes"}
    limits = [f"{row[name]} {unit}" for name, unit in units.items() if row.get(name) is not None]
    parts = [
        (row.get("title") or "", question),
        ("Limits", ", ".join(limits)),
        ("Input", row.get("input_format")),
        ("Output", row.get("output_format")),
        ("Examples", "\n".join(examples)),
        ("Note", row.get("note")),
    ]
    texts = [f"## {title}\n{text.strip()}" for title, text in parts if text]
    tests = _tests(row, "official_tests")
    truth = {f"{name}s": [test[name] for test in tests] for name in ("input", "output")}
    prompt = "\n\n".join([*texts, _PROGRAM])
    return Example(question, prompt, json.dumps(truth), row.get("editorial"))


def _fenced(test: Row, name: str) -> str:
    return f"{name}:\n```\n{test[name].strip()}\n```"


def _tests(row: Row, name: str) -> list[Row]:
    tests = row.get(name) or []
    sides = ("input", "output")
    if all(
        isinstance(test, Mapping) and all(isinstance(test.get(side), str) for side in sides)
        for test in tests
    ):
        return list(tests)
    raise ValueError(
        f"needs {name!r}, a list of texts 'input' and 'output'; fields are {_names(row)}"
    )


def _unfit_for_code(row: Row) -> str | None:
    """Return why `reward.function: code`, which compares printed output, cannot score a problem."""
    if row.get("interaction_format"):
        return "talks with its judge"
    if row.get("input_mode") not in (None, "stdio"):
        return "reads and writes files"
    if row.get("generated_checker"):
        return "has several right answers, which a checker of its own tells"
    if not row.get("official_tests") or not row.get("official_tests_complete"):
        return "has tests that are cut off, or none"
    return None


def _choices(name: str, read: Callable[[Row, int], Example], **labels: str) -> Recipe:
    source = f"multiple_choice/{name}"
    return Recipe(source, read, "knowledge", labels=labels, has_options=True)


_TRAIN_AND_TEST = ("train", "test")

RECIPES: Mapping[str, Recipe] = {
    "gsm8k": Recipe("openai/gsm8k", _gsm8k, splits=_TRAIN_AND_TEST),
    "math": Recipe(
        "DigitalLearningGmbH/MATH-lighteval",
        _math,
        splits=_TRAIN_AND_TEST,
        labels={"level": "level", "type": "type"},
    ),
    "math500": Recipe(
        "HuggingFaceH4/MATH-500",
        _math_500,
        labels={"level": "level", "subject": "subject", "unique_id": "unique_id"},
    ),
    "aime": Recipe("aime", _aime, labels={"id": "id", "ID": "id", "year": "year", "url": "url"}),
    "gpqa": _choices("gpqa", _gpqa, **{"Record ID": "id", "Subdomain": "subject"}),
    "mmlu": _choices("mmlu", _mmlu, subject="subject"),
    "mmlu_pro": _choices("mmlu_pro", _mmlu, question_id="id", category="subject"),
    "arc": _choices("arc", _arc, id="id"),
    "codeforces": Recipe(
        "codeforces",
        _codeforces,
        "code",
        labels={name: name for name in ("id", "rating", "time_limit", "memory_limit")},
        unfit=_unfit_for_code,
    ),
}
