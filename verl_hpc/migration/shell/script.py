"""A shell script that starts verl, as the words of its command.

Nothing is run. Assignments, arrays, `${NAME:-default}`, `$((...))` of whole numbers and branches
that compare variables are followed; what depends on more is an error that names the variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from verl_hpc.config.foreign import MIGRATE
from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.blocks import Blocks, Run, Step, tested
from verl_hpc.migration.shell.expansion import Expander, Unknown, Value
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
from verl_hpc.migration.shell.tree import Command, Parameter, Text, Word

PROGRAMS = ("verl.trainer.main_ppo", "verl_hpc.trainer.main_ppo")
_OF_OTHERS = {
    "sft": "its counterpart is a file of ours with recipe: sft (docs/recipes.md)",
    "generation": "answers of a model are an evaluation here (docs/evaluation.md)",
    "eval": "answers of a model are an evaluation here (docs/evaluation.md)",
    "async": "generation beside training is rollout.staleness (docs/asynchronous.md)",
    "model_merger": "python -m verl_hpc export writes a step for transformers",
}
_DECLARES = ("export", "local", "declare", "typeset", "readonly")
_PLAIN_OPTION = re.compile(r"-[agrx]+")
_NAMED = ("unset", "read", "mapfile", "readarray", "getopts", "let", "eval")
"""Commands that set the variables that they name."""
_PREFIXES = ("!", "command", "builtin")
_ENDS = ("exit", "return")
_MOVES = ("cd", "pushd", "popd")
_SAYS = ("echo", "printf", ":")
"""Commands whose words are no command."""
_OF_BASH = ["HOSTNAME", "UID", "EUID", "PPID", "RANDOM", "SECONDS", "LINENO", "BASH_SOURCE"]
_BY_COMMAND = "is set by a command, and nothing is run"


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
        commands = commands_of(path.read_text(encoding="utf-8"))
        return _Script(path.name, environment).words(commands)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read: its brackets are too deep") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def command_words(words: list[str]) -> list[str]:
    """Those behind the program's name; all of them if it is not there."""
    for index, word in enumerate(words):
        if word in PROGRAMS:
            rest = words[index + 1 :]
            end = next((i for i, w in enumerate(rest) if re.match(r"\d?>|[|&;]", w)), len(rest))
            return rest[:end]
    return words


class _Script:
    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name, self.environment = name, environment
        own = {name: Unknown(f"${name} is bash's own; write its value there") for name in _OF_BASH}
        variables: dict[str, Value] = {"PWD": str(Path.cwd()), **own, **environment, "@": []}
        self.variables, self.expander = variables, Expander(variables, name)
        self.functions: dict[str, set[str]] = {}
        """The variables that each assigns, if it is called."""

    def words(self, commands: Sequence[Command]) -> list[str]:
        """Of the first command that starts verl.

        Raises:
            ConfigError: none does, or its words are not known.
        """
        blocks = Blocks()
        for step in blocks.steps(commands):
            behind = _behind_program(step.words)
            if behind is not None and step.within == Run.YES and step.chained != Run.NO:
                at = commands.index(step.command) + 1
                _check_whole(step.command, commands[at] if at < len(commands) else None)
                _check_first(step, commands[at:])
                return self.expander.fields(behind)
            words = without_its_environment(step.words)
            if step.run == Run.YES:
                self._follow(words)
            elif step.run == Run.PERHAPS:
                self._skip(step, words)
            if step.run != Run.NO:
                sure = step.chained == Run.YES and step.once
                blocks.truth = self._truth(step.words) if sure else None
        raise ConfigError(f"starts none of {', '.join(PROGRAMS)}{_started(commands)}")

    def _truth(self, words: Sequence[Word]) -> bool | None:
        if not are_assignments(words):
            return tested(words, self.expander)
        programs = any(re.search(r"\$\(|`", word.source) for word in words)
        return None if programs else True

    def _follow(self, words: Sequence[Word]) -> None:
        """A command that is run, as far as it sets variables."""
        first, behind = words[0].bare, words[1:]
        options = [word.bare or "" for word in behind if word.source.startswith(("-", "+"))]
        self._forget(counted(words), words[0].line, _BY_COMMAND)
        if are_assignments(words):
            for word in words:
                self._assign(word)
        elif first in _DECLARES and all(_PLAIN_OPTION.fullmatch(option) for option in options):
            for word in behind:
                self._assign(word)
            self._forget(quoted_names(behind), words[0].line, _BY_COMMAND)
        elif first == "unset" and not any("[" in word.source for word in behind):
            for word in behind:
                self.variables.pop(word.plain or "", None)
        elif first == "set" and words[1:2] and words[1].bare == "--":
            self._set("@", lambda: self.expander.fields(words[2:]))
        elif first in _ENDS:
            raise ConfigError(f"line {words[0].line}: {first} ends it before verl is started")
        elif first == ":":
            for word in behind:  # for what ${NAME:=...} sets
                try:
                    self.expander.fields([word])
                except ConfigError:
                    self._forget(defaults([word]), word.line, _BY_COMMAND)
        else:
            self._forget(self._sets(words), words[0].line, _BY_COMMAND)

    def _skip(self, step: Step, words: Sequence[Word]) -> None:
        """A command that is perhaps run."""
        names, local = self._sets(words), words[0].bare == "local"
        if step.function:
            self.functions.setdefault(step.function, set()).update(() if local else names)
        else:
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

    def _forget(self, names: Iterable[str], line: int, why: str) -> None:
        """What the user sets instead is taken; else it is an error where it is asked for."""
        for name in names:
            if name in self.environment and name != "PWD":
                self.variables[name] = self.environment[name]
                continue
            settable = name not in ("PWD", "@")
            way = f"; set it before the command: {name}=... {MIGRATE} {self.name}"
            self.variables[name] = Unknown(f"line {line}: ${name} {why}{way if settable else ''}")

    def _assign(self, word: Word) -> None:
        match = ASSIGNED.match(word.source)
        if match is None:
            return
        name, index, more = match[1], match[2], bool(match[3])
        if index is not None:
            self._forget([name], word.line, "is set by index, which is not read")
            return
        if word.array is not None:
            self._set(name, lambda: self._elements(word), more)
            return
        first, *rest = word.parts
        assert isinstance(first, Text)
        value = replace(word, parts=(Text(first.text[match.end() :], quoted=False), *rest))
        own = bool(rest) and isinstance(rest[0], Parameter) and rest[0].name == name
        self._set(name, lambda: self.expander.text(value), more, own)

    def _elements(self, word: Word) -> list[str]:
        if any(element.source.startswith("[") for element in word.array or ()):
            raise ConfigError(f"line {word.line}: {word.source}: indices of an array are not read")
        return self.expander.fields(word.array or ())

    def _set(
        self, name: str, value: Callable[[], Value], more: bool = False, own: bool = False
    ) -> None:
        """What cannot be read is an error where the command asks for it.

        Args:
            more: it is added to what is there.
            own: the user can set the variable instead.
        """
        try:
            found = value()
        except ConfigError as error:
            way = f"{name}=... {MIGRATE} {self.name}"
            told = f"; or set it: {way}" if own and way not in str(error) else ""
            found = Unknown(f"{error} ({name}{told})")
        now = self.variables.get(name)
        before = now if more else None
        if not more and isinstance(now, list) and isinstance(found, str):
            found = [found, *now[1:]]
        if before is None or isinstance(found, Unknown):
            self.variables[name] = found
        elif isinstance(before, Unknown):
            return
        elif isinstance(found, list):
            self.variables[name] = [*([before] if isinstance(before, str) else before), *found]
        elif isinstance(before, list):
            self.variables[name] = ["".join([*before[:1], found]), *before[1:]]
        else:
            self.variables[name] = before + found


def _behind_program(words: Sequence[Word]) -> Sequence[Word] | None:
    """What follows `-m PROGRAM`, if that is what a command runs."""
    plain = [word.plain for word in words]
    for index, word in enumerate(plain):
        if word in PROGRAMS and plain[index - 1 : index] == ["-m"] and plain[0] not in _SAYS:
            return words[index + 1 :]
    return None


def _check_whole(command: Command, following: Command | None) -> None:
    """Raises: ConfigError: bash passes less to verl than who wrote the script believes."""
    for word in command.words:
        if word.source == "\\ ":
            raise ConfigError(
                f"line {word.line}: a blank behind the backslash ends the command, and bash passes "
                "nothing of what follows; take the blank away"
            )
    first = following.words[0].source if following is not None and following.words else ""
    more = re.match(r"[-+~$\"']|[^\s]*=", first)
    if command.cut is not None and more:
        raise ConfigError(
            f"line {command.cut}: a comment ends the command, and bash passes nothing of what "
            "follows; move the comment above the command"
        )
    if following is not None and re.match(r"[\w+~]+\.[\w.]+=", first):
        raise ConfigError(
            f"line {following.line}: {first} is no part of the command above it, which bash passes "
            "without; end each line of the command by a backslash, and leave no line empty"
        )


def _check_first(step: Step, later: Sequence[Command]) -> None:
    """Raises: ConfigError: it is perhaps not run, and another one is."""
    if step.chained == Run.PERHAPS and any(_behind_program(c.words) is not None for c in later):
        raise ConfigError(
            f"line {step.command.line}: nothing here says whether this command is run, or a later "
            "one that starts verl; give the command itself"
        )


def _started(commands: Sequence[Command]) -> str:
    """What it starts instead, and what that is here."""
    for command in commands:
        plain = [word.plain or "" for word in command.words]
        named = [name for option, name in pairwise(plain) if option == "-m"]
        name = next((name for name in named if name.startswith("verl")), None)
        if name is None or plain[0] in _SAYS:
            continue
        if name in PROGRAMS:
            return (
                " outside of branches, loops and functions, which are not read; give the command "
                "itself"
            )
        module = name.rpartition(".")[2]
        says = next((says for word, says in _OF_OTHERS.items() if word in module), None)
        return f", but {name}" if says is None else f", but {name}; {says}"
    return ""
