"""Words of a shell script expanded, as bash does it, by variables that are known.

Left out: names of files (`*.parquet` stays).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from verl_hpc.config.foreign import MIGRATE
from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.parse import commands_of
from verl_hpc.migration.shell.sets import ASSIGNED
from verl_hpc.migration.shell.sums import total
from verl_hpc.migration.shell.tree import Parameter, Part, Program, Sum, Text, Word
from verl_hpc.migration.shell.variables import Unknown, Value, Variables

_FORMAT = re.compile(r"\+((?:[^%]|%[aAbBcdDeFHIjmMpRsSTuUVwWxXyYzZ%])*)")
_LONGEST = 2**21
"""The most characters of a script's words together: what Linux takes as one program's arguments."""
_PATTERN = re.compile(r"[*?\[\\]")
_CHOICES = ("-", "=", "?", "+")
_CASES = {",,": str.lower, "^^": str.upper}


class _Fields:
    """Words that grow part by part."""

    def __init__(self, spend: Callable[[int], None], splits: bool, by: Value | None = None) -> None:
        self.spend, self.splits, self.by = spend, splits, by
        self.done: list[str] = []
        self.current: str | None = None

    def add(self, text: str, quoted: bool) -> None:
        self.spend(len(text) + 1)
        if quoted or not self.splits:
            self.current = (self.current or "") + text
            return
        if self.by is not None and set(text) & {*" \t\n", *self.by}:
            raise ConfigError(f"{text!r} is split by IFS, which is set; put it into quotes")
        for piece in re.split(r"([ \t\n]+)", text):
            if piece.strip(" \t\n"):
                self.current = (self.current or "") + piece
            elif piece:
                self.end()

    def end(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None


class Expander:
    """Variables, and the words that they make."""

    def __init__(self, variables: Variables, script: str) -> None:
        self.variables = variables
        self.script = script
        """Its name, for messages."""
        self.spent = 0
        """Characters so far."""

    def way(self, name: str) -> str:
        """How the user says what a variable is."""
        return f"give it: {MIGRATE} {name}=... {self.script}"

    def _spend(self, characters: int) -> None:
        self.spent += characters
        if self.spent > _LONGEST:
            raise ConfigError(f"the script's words are more than {_LONGEST} characters")

    def fields(self, words: Sequence[Word], array: bool = False) -> list[str]:
        """As a command's words or an array's: some become none, some become several.

        In a command's `NAME=~/x` bash writes ~ out, in an array's not.

        Raises:
            ConfigError: a variable is not known, or something else than is read here.
        """
        found: list[str] = []
        for word in words:
            _check_braces(word)
            fields = _Fields(self._spend, splits=True, by=self.variables.get("IFS"))
            first = word.parts[0] if word.parts else None
            plain = isinstance(first, Text) and not first.quoted and not array
            named = ASSIGNED.match(first.text) if isinstance(first, Text) and plain else None
            if named is not None and named[2] is None:
                fields.add(named[0], quoted=True)
                self._add(behind(word, named.end()), fields, assigned=True)
            else:
                self._add(word, fields)
            fields.end()
            found += fields.done
        return found

    def text(self, word: Word, assigned: bool = False) -> str:
        """One text, as the value of an assignment is.

        Raises:
            ConfigError: as `fields`.
        """
        fields = _Fields(self._spend, splits=False)
        self._add(word, fields, assigned)
        return fields.current or ""

    def _add(self, word: Word, fields: _Fields, assigned: bool = False) -> None:
        try:
            for part in _at_home(word.parts, assigned):
                self._add_part(part, word, fields)
        except ConfigError as error:
            if str(error).startswith("line "):
                raise
            raise ConfigError(f"line {word.line}: {error}") from None

    def _add_part(self, part: Part, word: Word, fields: _Fields) -> None:
        if isinstance(part, Text):
            fields.add(part.text, part.quoted)
        elif isinstance(part, Parameter):
            self._add_parameter(part, fields)
        elif isinstance(part, Sum):
            fields.add(str(total(self.text(part.inner), self._known)), part.quoted)
        elif isinstance(part, Program):
            fields.add(self._printed(part, word.line), part.quoted)
        else:
            raise ConfigError(f"{part.source} {part.why}")

    def _known(self, name: str) -> str:
        """Of a variable that has to be there, as within a sum."""
        fields = _Fields(self._spend, splits=False)
        self._add_parameter(Parameter(f"${name}", name, None, "", None, True), fields)
        return fields.current or ""

    def _add_parameter(self, asked: Parameter, fields: _Fields) -> None:
        value = self._value(asked)
        found: str | list[str] | Word | None = value
        if asked.operator.removeprefix(":") in _CHOICES and asked.argument is not None:
            found = self._chosen(asked, value, asked.argument)
        elif asked.operator:
            found = _changed(asked, value)
        if found is None:
            raise self._not_known(asked)
        if isinstance(found, Word):
            self._add(found, fields)
        elif isinstance(found, str):
            fields.add(found, asked.quoted)
        elif asked.index == "*" and asked.quoted:
            fields.add(" ".join(found), quoted=True)
        else:
            for index, element in enumerate(found):
                if index and fields.splits:
                    fields.end()
                elif index:
                    fields.add(" ", quoted=True)
                fields.add(element, asked.quoted)

    def _chosen(
        self, asked: Parameter, value: str | list[str] | None, argument: Word
    ) -> str | list[str] | Word | None:
        """What `:-`, `:=`, `:?` and `:+` make, or the same without a colon."""
        kind = asked.operator[-1]
        missing = value is None or (asked.operator[0] == ":" and value in ("", [], [""]))
        if kind == "+":
            return "" if missing else argument
        if not missing:
            return value
        if kind == "=":
            value = self.text(argument)
            self.variables.put(asked.name, value)
            return value
        return argument if kind == "-" else None

    def _value(self, asked: Parameter) -> str | list[str] | None:
        """None if it is not set.

        Raises:
            ConfigError: it has a value, which cannot be read.
        """
        name, index = asked.name, asked.index
        if name.isdigit() and name != "0":
            name, index = "@", str(int(name) - 1)
        value = self.variables.get(name)
        if isinstance(value, Unknown):
            raise ConfigError(value)
        if value is None and self.variables.unread and name.isidentifier():
            raise ConfigError(
                f"{self.variables.unread} is not followed and may set ${name}; take that line away "
                f"if it does not, or {self.way(name)}"
            )
        if value is None:
            return None
        listed = [value] if isinstance(value, str) else value
        if index in ("@", "*"):
            return listed
        if index is not None and not index.isdigit():
            raise ConfigError(f"{asked.source}: expected an index that is a number")
        at = int(index or 0)
        return listed[at] if at < len(listed) else None

    def _not_known(self, asked: Parameter) -> ConfigError:
        name = asked.name
        if name.isdigit():
            return ConfigError(
                f"{asked.source} is an argument of the script; write its value there"
            )
        if not name.isidentifier():
            return ConfigError(
                f"{asked.source} is known where the script runs alone; write its value there"
            )
        return ConfigError(f"${name} is not known; {self.way(name)}")

    def _printed(self, program: Program, line: int) -> str:
        """What a program would print: date, pwd and basename are computed here."""
        commands = commands_of(program.body, line)
        words = commands[0].words if len(commands) == 1 else ()
        known = words and words[0].plain in ("date", "pwd", "basename")
        match self.fields(words) if known else []:
            case ["date", form] if found := _FORMAT.fullmatch(form):
                return time.strftime(found[1])
            case ["pwd"]:
                return self._known("PWD")
            case ["basename", path, *suffix] if len(suffix) < 2:
                name = path.rstrip("/").rpartition("/")[2]
                return name.removesuffix(suffix[0]) if suffix and name != suffix[0] else name
        raise ConfigError(f"{program.source} runs a program, and nothing is run; edit the script")


def _changed(asked: Parameter, value: str | list[str] | None) -> str | list[str] | None:
    """By an operator that makes another text of a value."""
    listed = [value] if isinstance(value, str) else value or []
    argument = asked.argument.plain if asked.argument is not None else None
    if asked.operator == ":" and asked.index == "@" and re.fullmatch(r"[1-9]\d*", argument or ""):
        return listed[int(argument or "") - (asked.name == "@") :]
    if asked.operator in _CASES and argument == "":
        found = [_CASES[asked.operator](one) for one in listed]
    elif asked.operator in ("/", "//") and argument and not _PATTERN.search(argument):
        old, _, new = argument.partition("/")
        if not old or old[0] in "#%":
            raise ConfigError(f"{asked.source} is not read; write its value there")
        found = [one.replace(old, new, 1 if asked.operator == "/" else -1) for one in listed]
    else:
        raise ConfigError(f"{asked.source} is not read; write its value there")
    if value is None:
        return None
    return found if not isinstance(value, str) else found[0]


def behind(word: Word, start: int) -> Word:
    """Without the first characters of its first part, which is text."""
    first = word.parts[0]
    assert isinstance(first, Text)
    return replace(word, parts=(Text(first.text[start:], quoted=False), *word.parts[1:]))


def _at_home(parts: tuple[Part, ...], assigned: bool) -> Iterator[Part]:
    """~ written out, where bash does: at a word's start, and behind : where it is assigned.

    Raises:
        ConfigError: it is `~+` or its like.
    """
    for index, part in enumerate(parts):
        if not isinstance(part, Text) or part.quoted:
            yield part
            continue
        done = 0
        for found in re.finditer(r"~[^/:]*" if assigned else r"^~[^/]*", part.text):
            start, end = found.span()
            opens = index == 0 if start == 0 else part.text[start - 1] == ":"
            if not opens or (end == len(part.text) and index + 1 < len(parts)):
                continue
            if re.fullmatch(r"~([+-]\d*|\d+)", found[0]):
                raise ConfigError(f"{found[0]} is a directory of bash's own; write it out")
            if found[0] == "~":
                yield Text(part.text[done:start], quoted=False)
                yield Parameter("~", "HOME", None, "", None, True)
                done = end
        yield Text(part.text[done:], quoted=False)


def _check_braces(word: Word) -> None:
    """Raises: ConfigError: bash makes several words of `{a,b}`, which nobody means here."""
    if word.array is not None:
        return
    plain = "".join(
        part.text if isinstance(part, Text) and not part.quoted else "\0" for part in word.parts
    )
    several: list[bool] = []
    """Whether there is a comma or .. within each brace that is open."""
    for sign in re.findall(r"[{},]|(?<!\{)\.\.(?!\})", plain):
        if sign == "{":
            several.append(False)
        elif several and sign != "}":
            several[-1] = True
        elif several and several.pop():
            raise ConfigError(
                f"line {word.line}: {word.source}: bash makes several words of {{a,b}} outside of "
                "quotes; put it into quotes"
            )
