"""A shell script that starts verl, as the words of its command.

Nothing is run. Assignments, arrays, `${NAME:-default}`, `$((...))` of whole numbers and branches
that compare variables are followed; what depends on more is an error that names the variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.blocks import Blocks, Run, Step, tested
from verl_hpc.migration.shell.expansion import Expander, behind
from verl_hpc.migration.shell.parse import commands_of
from verl_hpc.migration.shell.sets import (
    ASSIGNED,
    NAME,
    are_assignments,
    counted,
    defaults,
    quoted_names,
    set_in_sum,
    sets_arguments,
    without_its_environment,
)
from verl_hpc.migration.shell.start import (
    PROGRAMS,
    behind_program,
    check_first,
    check_whole,
    started_instead,
)
from verl_hpc.migration.shell.tree import Command, Word
from verl_hpc.migration.shell.variables import Unknown, Value, Variables

_DECLARES = ("export", "local", "declare", "typeset", "readonly")
_PLAIN_OPTION = re.compile(r"-[agrx]+")
_NAMED = ("unset", "read", "mapfile", "readarray", "getopts", "let", "eval")
"""Commands that set the variables that they name."""
_PREFIXES = ("!", "command", "builtin")
_ENDS = ("exit", "return", "exec")
_SOURCES = ("source", ".")
_DEEPEST = 20
"""Files that source one another."""
_MOVES = ("cd", "pushd", "popd")
_OF_BASH = ["HOSTNAME", "UID", "EUID", "PPID", "RANDOM", "SECONDS", "LINENO", "BASH_SOURCE"]
_BY_COMMAND = "is set by a command, and nothing is run"


def words_of(
    path: Path, environment: Mapping[str, str], given: Mapping[str, str] | None = None
) -> list[str]:
    """The words behind the program's name.

    Args:
        path: of a script.
        environment: variables that the script takes from where it is started.
        given: variables that stay as they are, whatever the script sets.

    Raises:
        ConfigError: it cannot be read, does not start verl, asks for a variable that is not
            known, or has none that is given.
    """
    try:
        text = path.read_text(encoding="utf-8")
        script = _Script(path, environment, given or {})
        words = script.words(commands_of(text))
        for name in given or ():
            if name not in script.variables.asked and not re.search(rf"\b{name}\b", text):
                raise ConfigError(f"{name}=... is given, but the script has no such variable")
        return words
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read: its brackets are too deep") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


class _Script:
    def __init__(
        self, path: Path, environment: Mapping[str, str], given: Mapping[str, str]
    ) -> None:
        own = {name: Unknown(f"${name} is bash's own; write its value there") for name in _OF_BASH}
        found: dict[str, Value] = {"PWD": str(Path.cwd()), **own, **environment, "@": []}
        self.variables = Variables(found, given)
        self.expander = Expander(self.variables, path.name)
        self.functions: dict[str, set[str]] = {}
        """The variables that each assigns, if it is called."""
        self.called: dict[str, set[str]] = {}
        """What each runs in any case, by first words."""
        self.files = [path]
        """The script, and the file that it has come to by `source`."""

    def words(self, commands: Sequence[Command]) -> list[str]:
        """Of the first command that starts verl.

        Raises:
            ConfigError: none does, or its words are not known.
        """
        found = self._words(commands)
        if found is None:
            raise ConfigError(f"starts none of {', '.join(PROGRAMS)}{started_instead(commands)}")
        return found

    def _words(self, commands: Sequence[Command]) -> list[str] | None:
        blocks = Blocks(self.variables)
        for step in blocks.steps(commands):
            started = behind_program(step.words)
            if started is not None and step.within == Run.YES and step.chained != Run.NO:
                at = commands.index(step.command) + 1
                check_whole(step.command, commands[at] if at < len(commands) else None)
                check_first(step, commands[at:])
                return self.expander.fields(started)
            words = without_its_environment(step.words)
            if step.run == Run.YES:
                file = self._sourced(words)
                if file is not None and not _returns(file[1]):
                    found = self._words_of_sourced(*file)
                    if found is not None:
                        return found
                else:
                    self._follow(step, words)
            elif step.run == Run.PERHAPS:
                self._skip(step, words)
            if step.run != Run.NO:
                sure = step.chained == Run.YES and step.once
                blocks.truth = self._truth(step.words) if sure else None
        return None

    def _words_of_sourced(self, path: Path, commands: Sequence[Command]) -> list[str] | None:
        self.files.append(path)
        try:
            return self._words(commands)
        except ConfigError as error:
            raise ConfigError(f"{path.name}: {error}") from None
        finally:
            self.files.pop()

    def _sourced(self, words: Sequence[Word]) -> tuple[Path, list[Command]] | None:
        """The file that `source FILE` names and its commands; None of what cannot be read."""
        if words[0].bare not in _SOURCES or len(words) != 2:
            return None
        folder = self.variables.get("PWD")
        try:
            (name,) = self.expander.fields(words[1:])
            below = [Path(folder)] if type(folder) is str else []
            paths = [one / name for one in [*below, self.files[0].parent]]
            path = next(path.resolve() for path in paths if path.is_file())
            if path in [one.resolve() for one in self.files] or len(self.files) > _DEEPEST:
                return None
            return path, commands_of(path.read_text(encoding="utf-8"))
        except (ConfigError, ValueError, StopIteration, OSError):
            return None

    def _truth(self, words: Sequence[Word]) -> bool | None:
        if not are_assignments(words):
            return tested(words, self.expander)
        programs = any(re.search(r"\$\(|`", word.source) for word in words)
        return None if programs else True

    def _follow(self, step: Step, words: Sequence[Word]) -> None:
        """A command that is run, as far as it sets variables."""
        first, rest = words[0].bare, words[1:]
        if self._ends(words):
            if not step.apart:
                raise ConfigError(f"line {words[0].line}: {first} ends it before verl is started")
        elif self._can_be_set(words):
            self._set_all(words)
        elif first == "unset" and not any("[" in word.source for word in rest):
            for word in rest:
                self.variables.put(word.plain or "", None)
        elif first == "set" and rest and rest[0].bare == "--":
            self._put("@", self._value("@", lambda: self.expander.fields(rest[1:])), more=False)
        else:
            self._forget(self._sets(words), words[0].line, _BY_COMMAND)

    def _ends(self, words: Sequence[Word]) -> bool:
        """Whether the script does not go on behind it."""
        first, seen = words[0].bare or "", set[str]()
        if first in _ENDS:
            return first != "exec" or len(words) > 1
        waiting = [first]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            called = self.called.get(name, set())
            if "exit" in called:
                return True
            waiting += called
        return False

    def _can_be_set(self, words: Sequence[Word]) -> bool:
        first = words[0].bare
        options = [word.bare or "" for word in words[1:] if word.source.startswith(("-", "+"))]
        plain = all(_PLAIN_OPTION.fullmatch(option) for option in options)
        return are_assignments(words) or first == ":" or (first in _DECLARES and plain)

    def _set_all(self, words: Sequence[Word]) -> None:
        """What `A=1`, `export A=1` and `: ${A:=1}` set."""
        line, rest = words[0].line, words[1:]
        self._forget(counted(words), line, _BY_COMMAND)
        if are_assignments(words):
            for word in words:
                self._assign([word])
        elif words[0].bare == ":":
            for word in rest:
                try:
                    self.expander.fields([word])
                except ConfigError:
                    self._forget(defaults([word]), word.line, _BY_COMMAND)
        else:
            self._assign(rest)
            self._forget(quoted_names(rest), line, _BY_COMMAND)

    def _skip(self, step: Step, words: Sequence[Word]) -> None:
        """A command that is perhaps run."""
        first = words[0].bare
        if step.function:
            names = set[str]() if first == "local" else self._sets(words)
            self.functions.setdefault(step.function, set()).update(names)
            if step.alone and not step.apart:
                self.called.setdefault(step.function, set()).add(first or "")
            return
        if step.alone and not step.apart and self._ends(words):
            raise ConfigError(
                f"line {words[0].line}: {first} within a loop, which is not followed, ends it "
                "perhaps before verl is started; give the command itself"
            )
        if step.once and self._can_be_set(words):
            before = self.variables.mark()
            self._set_all(words)
            names = self.variables.changed(before)
            self.variables.undo(before)
        else:
            names = self._sets(words)
        where = "a branch, a loop or behind && or ||, which is not followed"
        self._forget(names, words[0].line, f"is set in {where}")

    def _sets(self, words: Sequence[Word]) -> set[str]:
        """The variables that a command may set."""
        words = words[next((i for i, w in enumerate(words) if w.bare not in _PREFIXES), 0) :]
        first = words[0].bare
        found = {*defaults(words), *counted(words)}
        names_one = first == "printf" and words[1:2] and words[1].bare == "-v"
        if first in _NAMED or names_one:
            found |= {name for word in words for name in NAME.findall(word.source)}
            if first == "eval" and any(word.plain is None for word in words):
                self._not_followed(words)
        elif first in _SOURCES:
            found |= self._sets_of_sourced(words)
        elif words[0].source.startswith("(("):
            found |= set_in_sum(words[0].source)
        elif first in ("for", "select"):
            found |= {name for word in words[1:2] for name in NAME.findall(word.source)}
        elif first in _MOVES:
            found.add("PWD")
        elif first in self.functions:
            found.update(*self.functions.values())  # it may call the others
        elif first == "shift" or (first == "set" and sets_arguments(words[1:])):
            found.add("@")
        elif are_assignments(words) or first in _DECLARES:
            found |= {match[1] for word in words if (match := ASSIGNED.match(word.source))}
            found |= quoted_names(words)
        return found

    def _sets_of_sourced(self, words: Sequence[Word]) -> set[str]:
        file = self._sourced(words)
        if file is None:
            self._not_followed(words)
            return set()
        path, commands = file
        self.files.append(path)
        steps = Blocks(Variables({}, {})).steps(commands)
        found = {name for step in steps for name in self._sets(step.words)}
        self.files.pop()
        return found

    def _not_followed(self, words: Sequence[Word]) -> None:
        told = " ".join(word.source for word in words)
        self.variables.unread = f"{self._place(words[0].line)}: {told}"

    def _place(self, line: int) -> str:
        return f"{self._file()}line {line}"

    def _file(self) -> str:
        """Before a line's number, if it is not the script's."""
        return "" if len(self.files) == 1 else f"{self.files[-1].name}, "

    def _forget(self, names: Iterable[str], line: int, why: str) -> None:
        """An error where they are asked for."""
        for name in names:
            settable = name not in ("PWD", "@")
            way = f"; {self.expander.way(name)}" if settable else ""
            self.variables.put(name, Unknown(f"{self._place(line)}: ${name} {why}{way}"))

    def _assign(self, words: Sequence[Word]) -> None:
        """Of one command: all of it is expanded before anything is set."""
        found = [(word, self._assigned(word)) for word in words if ASSIGNED.match(word.source)]
        for word, value in found:
            match = ASSIGNED.match(word.source)
            assert match is not None
            if match[2] is not None:
                self._forget([match[1]], word.line, "is set by index, which is not read")
            else:
                self._put(match[1], value, more=bool(match[3]))

    def _assigned(self, word: Word) -> Value:
        match = ASSIGNED.match(word.source)
        assert match is not None
        if word.array is not None:
            return self._value(match[1], lambda: self._elements(word))
        return self._value(
            match[1], lambda: self.expander.text(behind(word, match.end()), assigned=True)
        )

    def _elements(self, word: Word) -> list[str]:
        if any(element.source.startswith("[") for element in word.array or ()):
            raise ConfigError(f"line {word.line}: {word.source}: indices of an array are not read")
        return self.expander.fields(word.array or (), array=True)

    def _value(self, name: str, value: Callable[[], Value]) -> Value:
        """What cannot be read is an error where the command asks for it."""
        try:
            return value()
        except ConfigError as error:
            way = self.expander.way(name)
            told = f"; or {way}" if name != "@" and "give it: " not in str(error) else ""
            return Unknown(f"{self._file()}{error} ({name}{told})")

    def _put(self, name: str, found: Value, more: bool) -> None:
        """Set it, or add to what is there."""
        now = self.variables.get(name)
        if isinstance(found, Unknown) or now is None or not (more or isinstance(now, list)):
            self.variables.put(name, found)
        elif not more:
            self.variables.put(name, found if isinstance(found, list) else [found, *now[1:]])
        elif isinstance(now, Unknown):
            return
        elif isinstance(found, list):
            self.variables.put(name, [*([now] if isinstance(now, str) else now), *found])
        elif isinstance(now, list):
            self.variables.put(name, ["".join([*now[:1], found]), *now[1:]])
        else:
            self.variables.put(name, now + found)


def _returns(commands: Sequence[Command]) -> bool:
    """Whether a sourced file may end before its last line."""
    return any(word.bare == "return" for command in commands for word in command.words)
