"""Read the tests of a program from rows of code data sets, and say what is run for each."""

from __future__ import annotations

import builtins
import importlib
import json
import math
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from verl_hpc.errors import RewardError

_DRIVER = Path(__file__).with_name("code_driver.py")
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_TOLERANCE = 1e-6
"""Absolute or relative tolerance of numbers that are not whole, as judges of contests allow."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_MODULES = (
    # typing comes first: it also has a Counter, and collections' is meant.
    *("typing", "string", "re", "datetime", "collections", "heapq", "bisect", "copy"),
    *("math", "random", "statistics", "itertools", "functools", "operator", "io", "sys", "json"),
)
"""Modules of APPS, LiveCodeBench and PRIME, each with `import M` and `from M import *` (verl's
prime_code and sandbox_fusion have the same list)."""


@cache
def _driver() -> str:
    return _DRIVER.read_text(encoding="utf-8")


def _tests_of(program: str, word: str, **job: Any) -> tuple[str, str]:
    job |= {"program": program, "preamble": _preamble_of(program), "word": word}
    return f"{_driver()}\n\nrun_tests()\n", json.dumps(job)


def _preamble_of(program: str) -> dict[str, str]:
    """Return the names in a program that judges import before it, and the module of each.

    Only modules that a program uses are imported: all of them take longer than its interpreter's
    start.
    """
    known = _known_names()
    return {word: known[word] for word in dict.fromkeys(_WORD.findall(program)) if word in known}


@cache
def _known_names() -> dict[str, str]:
    modules: dict[str, str] = {}
    for name in _MODULES:
        module = importlib.import_module(name)
        public = [known for known in dir(module) if not known.startswith("_")]
        modules |= dict.fromkeys(getattr(module, "__all__", public), name)
    # A module comes after what others have of its name: datetime, copy.
    modules |= {name: name for name in _MODULES}
    return {name: module for name, module in modules.items() if not hasattr(builtins, name)}


@dataclass(frozen=True)
class InputCase:
    """The program prints, for some input, what is expected: line by line, and word by word, equal
    as text, as whole numbers, or as other numbers within 1e-6 (absolute or relative)."""

    stdin: str
    expected: str

    def run_of(self, program: str) -> tuple[str, str]:
        """Return the program to run, and its standard input."""
        return f"{_driver()}\n\nrun_program({program!r}, {_preamble_of(program)!r})\n", self.stdin

    def passes(self, output: str) -> bool:
        """Whether the output of a run that exited with 0 is right."""
        found, expected = _lines(output), _lines(self.expected)
        return len(found) == len(expected) and all(map(_same_words, found, expected))

    @property
    def names(self) -> Collection[str]:
        """Words of the test, including the names that the program defines for it."""
        return ()


@dataclass(frozen=True)
class CallCase:
    """A function of the program, or of its class Solution, returns what is expected."""

    function: str
    arguments: Sequence[Any]
    expected: Any
    word: str

    def run_of(self, program: str) -> tuple[str, str]:
        """Return the program to run, and its standard input."""
        return _tests_of(program, self.word, function=self.function, arguments=list(self.arguments))

    def passes(self, output: str) -> bool:
        """Whether the output of a run that exited with 0 is right."""
        _, said, text = output.rpartition(self.word)
        if not said:
            return False
        try:
            found = json.loads(text)
            # APPS has a list of the one result.
            return _agree(found, self.expected) or _agree([found], self.expected)
        except (ValueError, RecursionError):
            return False

    @property
    def names(self) -> Collection[str]:
        """Words of the test, including the names that the program defines for it."""
        return (self.function,)


@dataclass(frozen=True)
class AssertCase:
    """Statements after the program raise nothing."""

    statements: str
    word: str
    tested: str = ""
    """The expression that is tested; if empty, all of the statements are."""

    def run_of(self, program: str) -> tuple[str, str]:
        """Return the program to run, and its standard input."""
        # Modules that tests use, and the one that parses them, are loaded before a program can
        # change them.
        modules = sorted({"ast", *_preamble_of(self.statements).values()})
        return _tests_of(program, self.word, tests=self.statements, modules=modules)

    def passes(self, output: str) -> bool:
        """Whether the output of a run that exited with 0 is right."""
        return output.endswith(f"{self.word}true")

    @property
    def names(self) -> Collection[str]:
        """Words of the test, including the names that the program defines for it."""
        return _WORD.findall(self.tested or self.statements)


Case = InputCase | CallCase | AssertCase
"""One test of a program."""


def read_cases(ground_truth: Any) -> list[Case]:
    """Return the tests of a row, in its order.

    Args:
        ground_truth: a mapping, or one as JSON: `inputs` and `outputs`, of standard input and
            output, or with `fn_name` of a function's arguments and results (APPS, LiveCodeBench,
            PRIME); `assert_case`, a list of statements (verl); or `test`, which defines
            check(candidate), and `entry_point` (HumanEval).

    Raises:
        RewardError: it is none of these.
    """
    values = _mapping(ground_truth)
    word = secrets.token_hex(16)
    if "assert_case" in values:
        cases = _list(values, "assert_case", of=str)
        return [AssertCase(case, word) for case in cases]
    if "test" in values and "entry_point" in values:
        statements = f"{values['test']}\ncheck({values['entry_point']})\n"
        return [AssertCase(statements, word, str(values["entry_point"]))]
    inputs, outputs = _list(values, "inputs"), _list(values, "outputs")
    if len(inputs) != len(outputs):
        raise RewardError(f"the row has {len(inputs)} inputs and {len(outputs)} outputs")
    pairs = zip(inputs, outputs, strict=True)
    if name := values.get("fn_name"):
        # If arguments are not JSON texts, results are not either: '12' is then a text.
        return [
            CallCase(name, _arguments(i), _json(o) if isinstance(i, str) else o, word)
            for i, o in pairs
        ]
    return [InputCase(_text(i), _text(o)) for i, o in pairs]


def _mapping(ground_truth: Any) -> Mapping[str, Any]:
    values = _json(ground_truth)
    if isinstance(values, Mapping):
        return values
    raise RewardError(
        f"ground_truth = {ground_truth!r:.100} has no tests; expected a mapping, or one as JSON, "
        "with inputs and outputs, assert_case, or test and entry_point"
    )


def _list(values: Mapping[str, Any], name: str, of: type = object) -> Sequence[Any]:
    items = values.get(name)
    if isinstance(items, Sequence) and items and all(isinstance(item, of) for item in items):
        return items
    raise RewardError(
        f"ground_truth has {name} = {items!r:.100}; expected a list; its fields are "
        f"{', '.join(map(str, values))}"
    )


def _arguments(given: Any) -> list[Any]:
    """Return the arguments of a call, given as a list or as lines of JSON."""
    if isinstance(given, str):
        return [_json(line) for line in given.splitlines()]
    if isinstance(given, list):
        return given
    raise RewardError(f"ground_truth has the input {given!r:.100}; expected a list of arguments")


def _json(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def _text(given: Any) -> str:
    """Return a program's input or output as text; APPS has lists of lines."""
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def _same_words(found: list[str], expected: list[str]) -> bool:
    return len(found) == len(expected) and all(map(_same, found, expected))


def _same(found: str, expected: str) -> bool:
    if found == expected:
        return True
    # 007 and 1_000 are words.
    if not (_NUMBER.fullmatch(found) and _NUMBER.fullmatch(expected)):
        return False
    if _INTEGER.fullmatch(expected):
        return Decimal(found) == Decimal(expected)
    return _is_close(Decimal(found), Decimal(expected))


def _is_close(found: Decimal, expected: Decimal) -> bool:
    return abs(found - expected) <= Decimal(_TOLERANCE) * max(Decimal(1), abs(expected))


def _agree(found: Any, expected: Any) -> bool:
    """Whether two values of JSON are equal, numbers that are not whole within the tolerance."""
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_agree, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_agree(found[k], expected[k]) for k in found)
    if isinstance(expected, float) and isinstance(found, float | int):
        return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return bool(found == expected)
