"""A shell script that starts verl, as the words of its command.

Nothing is run. Assignments, arrays, `${NAME:-default}`, `$((...))` of whole numbers and continued
lines are read, and `$(date +FORMAT)` is when this is; what depends on more is an error that names
the variable.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from verl_hpc.config.foreign import MIGRATE
from verl_hpc.errors import ConfigError

PROGRAMS = ("verl.trainer.main_ppo", "verl_hpc.trainer.main_ppo")
_PROGRAM = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, PROGRAMS))})(?![\w.])")
_OTHER = re.compile(r"-m\s+(verl(?:\.\w+)+)")
_OF_OTHERS = {
    "sft": "its counterpart is a file of ours with recipe: sft (docs/recipes.md)",
    "generation": "answers of a model are an evaluation here (docs/evaluation.md)",
    "eval": "answers of a model are an evaluation here (docs/evaluation.md)",
    "async": "generation beside training is rollout.staleness (docs/asynchronous.md)",
    "model_merger": "python -m verl_hpc export writes a step for transformers",
}
_ASSIGNED = re.compile(r"(?:export\s+|local\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$\{([A-Za-z_]\w*)\[[@*]\]\}|\$\{([A-Za-z_]\w*)(:?-((?:[^{}]|\{[^{}]*\})*))?\}|\$([A-Za-z_]\w*)|\$([@*])"
)
_WORD = re.compile(
    r"""(?:\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\([^()]*\)|\$\{(?:[^{}]|\{[^{}]*\})*\}"""
    r"""|[^\s"']|"(?:[^"\\]|\\.)*"|'[^']*')+"""
)
_PART = re.compile(
    r"""'[^']*'|"(?:[^"\\]|\\.)*"|\$\{(?:[^{}]|\{[^{}]*\})*\}|(?:(?!\$\{)[^"'])+|\$"""
)
_DATE = re.compile(r"""\$\(\s*date\s+["']?\+["']?([-%\w.:_]+)["']?\s*\)""")
_SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_OPENS = re.compile(r"(if|for|while|case)\b|.*\(\)\s*\{")
_CLOSES = re.compile(r"(fi|done|esac)\b|\}\s*$")


class _Unknown(str):
    """Why a variable has no value that can be read."""


_Value: TypeAlias = str | list[str]


def words_of(path: Path, environment: Mapping[str, str]) -> list[str]:
    """The words behind the program's name.

    Args:
        path: of a script.
        environment: variables that the script takes from where it is started.

    Raises:
        ConfigError: it cannot be read, does not start verl, or asks for a variable that is not
            known.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    variables: dict[str, _Value] = dict(environment)
    for line in _lines(text):
        assigned = _ASSIGNED.fullmatch(line)
        if assigned is not None:
            _assign(variables, assigned, path)
        elif _PROGRAM.search(line):
            return command_words(_words(line, variables, path))
    raise ConfigError(f"{path}: starts none of {', '.join(PROGRAMS)}{_started(text)}")


def _started(text: str) -> str:
    """What it starts instead, and what that is here."""
    other = _OTHER.search(text.replace("\\\n", " "))
    if other is None:
        return ""
    if other[1] in PROGRAMS:
        return (
            " outside of branches, loops and functions, which are not read; give the command itself"
        )
    module = other[1].rpartition(".")[2]
    known = next((says for word, says in _OF_OTHERS.items() if word in module), None)
    return f", but {other[1]}" if known is None else f", but {other[1]}; {known}"


def command_words(words: list[str]) -> list[str]:
    """Those behind the program's name; all of them if it is not there."""
    for index, word in enumerate(words):
        if word in PROGRAMS:
            rest = words[index + 1 :]
            end = next((i for i, w in enumerate(rest) if re.match(r"\d?>|[|&;]", w)), len(rest))
            return rest[:end]
    return words


def _lines(text: str) -> Iterator[str]:
    """Commands and assignments outside of branches and functions, each on one line."""
    depth = 0
    pending = ""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if not pending:
            if not stripped or stripped.startswith("#"):
                continue
            if _OPENS.match(stripped):
                depth += 1
            if depth:
                # An inner branch closes itself; the command is often in none.
                depth -= bool(_CLOSES.search(stripped))
                continue
        pending = f"{pending} {_uncommented(stripped)}".strip()
        if pending.count("(") > pending.count(")") or pending.count('"') % 2:
            continue
        yield pending
        pending = ""


def _uncommented(line: str) -> str:
    found = re.search(r"(?:^|\s)#", line)
    return line[: found.start()] if found and line[: found.start()].count('"') % 2 == 0 else line


def _assign(variables: dict[str, _Value], assigned: re.Match[str], path: Path) -> None:
    name, more, value = assigned[1], assigned[2], assigned[3]
    value = value.strip()
    try:
        if value.startswith("("):
            inner = value[1:].rstrip().removesuffix(")")
            before = variables.get(name, []) if more else []
            found = _words(inner, variables, path)
            variables[name] = [*(before if isinstance(before, list) else [before]), *found]
        else:
            variables[name] = " ".join(_words(value, variables, path))
    except ConfigError as error:  # an error where the command asks for it
        own = value.strip("\"'").startswith((f"${{{name}:-", f"${{{name}-"))
        way = f"; or set it: {name}=... {MIGRATE} {path.name}" if own else ""
        variables[name] = _Unknown(f"{error} ({name}{way})")


def _words(text: str, variables: Mapping[str, _Value], path: Path) -> list[str]:
    """Words as the shell makes them; an array is several."""
    words: list[str] = []
    for raw in _split(text):
        array = re.fullmatch(r'"?\$\{(\w+)\[@\]\}"?', raw)
        listed = variables.get(array[1]) if array else None
        if isinstance(listed, list):
            words += listed
            continue
        if raw in ('"$@"', "$@"):
            continue
        words.append(_expanded(raw, variables, path))
    return words


def _split(text: str) -> list[str]:
    """At white space outside of quotes, which stay."""
    return _WORD.findall(text)


def _expanded(raw: str, variables: Mapping[str, _Value], path: Path) -> str:
    parts = _PART.findall(raw)
    found = []
    for part in parts:
        if part.startswith("'"):
            found.append(part[1:-1])
            continue
        plain = re.sub(r"\\(.)", r"\1", part[1:-1]) if part.startswith('"') else part
        found.append(_filled(plain, variables, path))
    return "".join(found)


def _filled(text: str, variables: Mapping[str, _Value], path: Path) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[5]
        if name is None:
            return ""
        value = variables.get(name)
        if isinstance(value, _Unknown):
            raise ConfigError(str(value))
        if value is None or (value == "" and (match[3] or "").startswith(":")):
            if match[3] is None:
                raise ConfigError(
                    f"{path}: ${name} is not known; set it before the command: "
                    f"{name}=... {MIGRATE} {path.name}"
                )
            return _expanded(match[4] or "", variables, path)
        return value if isinstance(value, str) else " ".join(value)

    before = None
    while text != before:  # a default has variables, too, which are asked for if it is
        before, text = text, _VARIABLE.sub(one, text)
    text = _DATE.sub(lambda match: time.strftime(match[1]), text)
    program = re.search(r"\$\((?!\().*?(?:\)|$)|`.*?(?:`|$)", text)
    if program:
        raise ConfigError(
            f"{path}: {program[0]} runs a program, and nothing is run; edit the script"
        )

    def added(match: re.Match[str]) -> str:
        # Within $(( )) a variable needs no dollar sign.
        return _added(
            re.sub(r"[A-Za-z_]\w*", lambda word: _filled(f"${word[0]}", variables, path), match[1])
        )

    return _SUM.sub(added, text)


def _added(text: str) -> str:
    """Sums and products of whole numbers, without eval."""
    if not re.fullmatch(r"[\d\s+*/()-]+", text):
        raise ConfigError(f"$(({text})): expected sums and products of whole numbers")
    while "(" in text:
        text = re.sub(r"\(([^()]*)\)", lambda inner: str(_total(inner[1])), text)
    return str(_total(text))


def _total(text: str) -> int:
    total = 0
    for sign, product in re.findall(r"([+-]?)\s*([\d\s*/]+)", text):
        value, operator = 1, "*"
        for word in re.findall(r"\d+|[*/]", product):
            if word in "*/":
                operator = word
            else:
                value = value * int(word) if operator == "*" else value // max(int(word), 1)
        total += -value if sign == "-" else value
    return total
