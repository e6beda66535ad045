"""Tests of a program, as rows of code data sets have them, and what is run for each."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

from verl_hpc.errors import RewardError

# Reads what to do from its input, so that the text of tests and the word that says that they have
# passed are in no file and no argument. The word comes last: an early exit does not say it.
_DRIVER = """\
import json, os, sys
job = json.loads(sys.stdin.buffer.read())
try:
    code = compile(job["program"], "program.py", "exec")
except (SyntaxError, ValueError) as error:
    sys.exit(f"SyntaxError: {error}")
names = {"__name__": "solution"}
exec(code, names)
if "tests" in job:
    exec(compile(job["tests"], "tests.py", "exec"), names)
    found = True
else:
    function = names.get(job["function"])
    if function is None:
        function = getattr(names["Solution"](), job["function"])
    found = function(*job["arguments"])
sys.stdout.flush()
os.write(1, ("\\n" + job["word"] + json.dumps(found)).encode())
"""


class Case(Protocol):
    """One test of a program."""

    def run_of(self, program: str) -> tuple[str, str]:
        """What is run, and what it reads."""

    def passes(self, output: str) -> bool:
        """Whether the output of a run that exited with 0 is right."""


@dataclass(frozen=True)
class InputCase:
    """The program prints, for some input, what is expected: line by line, and word by word, equal
    as text or as numbers."""

    stdin: str
    expected: str

    def run_of(self, program: str) -> tuple[str, str]:
        """As `Case`."""
        return program, self.stdin

    def passes(self, output: str) -> bool:
        """As `Case`."""
        found, expected = _lines(output), _lines(self.expected)
        return len(found) == len(expected) and all(map(_same_words, found, expected))


@dataclass(frozen=True)
class CallCase:
    """A function of the program, or of its class Solution, returns what is expected."""

    function: str
    arguments: Sequence[Any]
    expected: Any
    word: str

    def run_of(self, program: str) -> tuple[str, str]:
        """As `Case`."""
        job = {"function": self.function, "arguments": self.arguments}
        return _DRIVER, json.dumps({"program": program, "word": self.word, **job})

    def passes(self, output: str) -> bool:
        """As `Case`."""
        _, said, text = output.rpartition(self.word)
        if not said:
            return False
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return False
        # APPS has a list of the one result.
        return bool(found == self.expected or [found] == self.expected)


@dataclass(frozen=True)
class AssertCase:
    """Statements after the program raise nothing."""

    statements: str
    word: str

    def run_of(self, program: str) -> tuple[str, str]:
        """As `Case`."""
        job = {"program": program, "tests": self.statements, "word": self.word}
        return _DRIVER, json.dumps(job)

    def passes(self, output: str) -> bool:
        """As `Case`."""
        return output.endswith(f"{self.word}true")


def read_cases(ground_truth: Any) -> list[Case]:
    """Tests of a row, in its order.

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
        return [AssertCase(statements, word)]
    inputs, outputs = _list(values, "inputs"), _list(values, "outputs")
    if len(inputs) != len(outputs):
        raise RewardError(f"the row has {len(inputs)} inputs and {len(outputs)} outputs")
    pairs = zip(inputs, outputs, strict=True)
    if name := values.get("fn_name"):
        return [CallCase(name, _arguments(i), _json(o), word) for i, o in pairs]
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
    found = values.get(name)
    if isinstance(found, Sequence) and found and all(isinstance(item, of) for item in found):
        return found
    raise RewardError(
        f"ground_truth has {name} = {found!r:.100}; expected a list; its fields are "
        f"{', '.join(map(str, values))}"
    )


def _arguments(given: Any) -> list[Any]:
    """A list of them, or a line of JSON for each."""
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
    """What a program reads or prints; APPS has lists of lines."""
    return "\n".join(map(str, given)) if isinstance(given, list) else str(given)


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def _same_words(found: list[str], expected: list[str]) -> bool:
    return len(found) == len(expected) and all(map(_same, found, expected))


def _same(found: str, expected: str) -> bool:
    if found == expected:
        return True
    try:
        return Decimal(found) == Decimal(expected)
    except InvalidOperation:
        return False
