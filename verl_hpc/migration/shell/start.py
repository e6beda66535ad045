"""The command of a script that starts verl."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.blocks import Run, Step
from verl_hpc.migration.shell.tree import Command, Word

PROGRAMS = ("verl.trainer.main_ppo", "verl_hpc.trainer.main_ppo")
_OF_OTHERS = {
    "sft": "its counterpart is a file of ours with recipe: sft (docs/recipes.md)",
    "generation": "answers of a model are an evaluation here (docs/evaluation.md)",
    "eval": "answers of a model are an evaluation here (docs/evaluation.md)",
    "async": "generation beside training is rollout.staleness (docs/asynchronous.md)",
    "model_merger": "python -m verl_hpc export writes a step for transformers",
}
_SAYS = ("echo", "printf", ":")
"""Commands whose words are no command."""


def command_words(words: list[str]) -> list[str]:
    """Those behind the program's name; all of them if it is not there."""
    for index, word in enumerate(words):
        if word in PROGRAMS:
            rest = words[index + 1 :]
            end = next((i for i, w in enumerate(rest) if re.match(r"\d?>|[|&;]", w)), len(rest))
            return rest[:end]
    return words


def behind_program(words: Sequence[Word]) -> Sequence[Word] | None:
    """What follows `-m PROGRAM`, if that is what a command runs."""
    plain = [word.plain for word in words]
    for index, word in enumerate(plain):
        if word in PROGRAMS and plain[index - 1 : index] == ["-m"] and plain[0] not in _SAYS:
            return words[index + 1 :]
    return None


def check_whole(command: Command, following: Command | None) -> None:
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


def check_first(step: Step, later: Sequence[Command]) -> None:
    """Raises: ConfigError: it is perhaps not run, and another one is."""
    if step.chained == Run.PERHAPS and any(behind_program(c.words) is not None for c in later):
        raise ConfigError(
            f"line {step.command.line}: nothing here says whether this command is run, or a later "
            "one that starts verl; give the command itself"
        )


def started_instead(commands: Sequence[Command]) -> str:
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
