"""Which commands of a script are run: within branches, loops and functions, behind && and ||."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.expansion import Expander
from verl_hpc.migration.shell.tree import Command, Word
from verl_hpc.migration.shell.variables import Variables

Truth: TypeAlias = bool | None
"""Whether a command succeeds; None where that is not known."""


_LOOPS = ("for", "select", "while", "until")
_PIPES = ("|", "|&")


class Run(IntEnum):
    """Whether a command is run."""

    YES = 0
    PERHAPS = 1
    NO = 2


@dataclass
class _Block:
    kind: str
    run: Run
    taken: Truth = False
    """Of an if: whether one of its branches is."""
    name: str = ""
    """Of a function."""
    chained: Run = Run.YES
    """Whether && or || before it let it run."""
    opened: int = 0
    """Where variables stood as it began, and so below."""
    listed: int = 0
    """As the commands that && and || join to this one began."""
    piped: int = 0
    """As this pipeline began."""
    pipes: bool = False
    """Whether a pipe leads to what comes."""
    joined: Run = Run.YES
    """Whether && or || let this pipeline run."""


@dataclass(frozen=True)
class Step:
    """A command without the words that open and close blocks."""

    command: Command
    words: Sequence[Word]
    within: Run
    """Whether the blocks around it are run."""
    chained: Run
    """Whether && or || before it let it run."""
    function: str
    """Within which it is; else empty."""
    once: bool
    """Whether it is run where it stands: within no loop and no function."""
    alone: bool
    """Whether it is run if the loops and functions around it are."""
    apart: bool
    """Whether it is in a process of its own, which no exit of its own ends the script."""

    @property
    def run(self) -> Run:
        return max(self.within, self.chained)


class Blocks:
    """Follows a script's commands; the caller tells how each ended.

    What a subshell has set (brackets, pipes, &) is taken back as it ends.
    """

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.outermost = _Block("", Run.YES)
        self.stack: list[_Block] = []
        self.truth: Truth = True
        """Of the last command."""
        self.named = ""
        """A function whose body is to come."""

    def steps(self, commands: Sequence[Command]) -> Iterator[Step]:
        """Set `truth` behind each."""
        for command in commands:
            if command.before == "(" and not self._within("case"):
                self._push("(", Run.PERHAPS)
            chained = self._begin(command.before)
            words = self._opened(command.words, chained)
            apart = {command.before, command.after} & {*_PIPES, "&"} != set()
            if words:
                yield self._step(command, words, chained, apart)
            if apart:
                self.truth = None
            if command.after == ")" and self._within("("):
                self.variables.undo(self.stack.pop().opened)
            self._end(command.after)

    def _step(self, command: Command, words: Sequence[Word], chained: Run, apart: bool) -> Step:
        within = max((max(block.run, block.chained) for block in self.stack), default=Run.YES)
        function = next((b.name for b in reversed(self.stack) if b.name), "")
        once = not function and not any(b.kind in _LOOPS for b in self.stack)
        others = [b for b in self.stack if b.kind not in _LOOPS and not (b.name and b.kind == "{")]
        alone = all(b.run == b.chained == Run.YES for b in others) and chained == Run.YES
        apart = apart or any(b.kind == "(" for b in self.stack)
        return Step(command, words, within, chained, function, once, alone, apart)

    def _push(self, kind: str, run: Run, chained: Run = Run.YES) -> None:
        now = self.variables.mark()
        named = self.named if kind not in ("for", "select", "case") else ""
        self.stack.append(_Block(kind, run, False, named, chained, now, now, now))
        if named:
            self.named = ""

    @property
    def _level(self) -> _Block:
        return self.stack[-1] if self.stack else self.outermost

    def _begin(self, before: str) -> Run:
        """A command behind an operator: whether && or || let it run."""
        level, now = self._level, self.variables.mark()
        if before in ("&&", "||"):
            level.piped, level.joined = now, self._chained(before)
        elif before not in (*_PIPES, ")"):
            level.listed = level.piped = now
        if before not in (*_PIPES, "&&", "||"):
            level.joined = Run.YES
        return level.joined

    def _end(self, after: str) -> None:
        level = self._level
        if level.pipes or after in _PIPES:
            self.variables.undo(level.piped)
        if after == "&":
            self.variables.undo(level.listed)
        level.pipes = after in _PIPES

    def _within(self, kind: str) -> bool:
        return bool(self.stack) and self.stack[-1].kind == kind

    def _chained(self, before: str) -> Run:
        if self.truth is None:
            return Run.PERHAPS
        return Run.YES if self.truth == (before == "&&") else Run.NO

    def _opened(self, words: Sequence[Word], chained: Run) -> Sequence[Word]:
        """What is left of a command behind its keywords."""
        while words:
            keyword = words[0].bare
            if keyword == "function" and len(words) > 1:
                self.named, words = words[1].plain or "", words[2:]
                continue
            if keyword in ("for", "select", "case"):
                self._push(keyword, Run.PERHAPS)
                return words if keyword != "case" else ()
            if keyword in ("while", "until", "if", "{"):
                always = keyword == "if" or (keyword == "{" and not self.named)
                run = Run.YES if always else Run.PERHAPS
                self._push(keyword, run, chained)
            elif keyword in ("fi", "done", "esac", "}"):
                block = self.stack.pop() if self.stack else None
                if keyword != "}" or (block is not None and block.chained != Run.YES):
                    self.truth = None  # an if of which no branch is taken succeeds
            elif keyword in ("then", "elif", "else"):
                self._branch(keyword)
            elif keyword not in ("do", "time"):
                return words
            words = words[1:]
        return ()

    def _branch(self, keyword: str) -> None:
        """The part of an if that begins is run if none before is, and its condition holds."""
        if not self._within("if"):
            return
        block = self.stack[-1]
        if keyword != "then":
            block.run = {True: Run.NO, None: Run.PERHAPS, False: Run.YES}[block.taken]
        elif block.run != Run.NO:
            if self.truth is False:
                block.run = Run.NO
                return
            sure = self.truth and block.taken is False
            block.run, block.taken = (Run.YES if sure else Run.PERHAPS), self.truth


_NUMBERS = {
    "-eq": "__eq__",
    "-ne": "__ne__",
    "-lt": "__lt__",
    "-le": "__le__",
    "-gt": "__gt__",
    "-ge": "__ge__",
}


def tested(words: Sequence[Word], expander: Expander) -> Truth:
    """Of `[ A = B ]` and its like; None of what asks for more than variables."""
    ends = {"[": "]", "[[": "]]", "test": None}
    opening = words[0].bare
    if opening not in ends:
        return {"true": True, "false": False, ":": True}.get(opening or "")
    inner = list(words[1:])
    if ends[opening] is not None and (not inner or inner.pop().bare != ends[opening]):
        return None
    negated = bool(inner) and inner[0].bare == "!"
    try:
        found = _compared(inner[negated:], expander, double=opening == "[[")
    except ConfigError:
        return None
    return found if found is None else found != negated


def _compared(words: Sequence[Word], expander: Expander, double: bool) -> Truth:
    texts = [expander.text(word) for word in words]
    if not double and expander.fields(words) != texts:
        return None  # a word that is several or none
    match texts:
        case [("-z" | "-n") as asked, text]:
            return (text == "") == (asked == "-z")
        case [a, ("=" | "==" | "!=") as operator, b]:
            pattern = double and re.search(r"[*?\[\\]", b)
            return None if pattern else (a == b) == (operator != "!=")
        case [a, operator, b] if operator in _NUMBERS:
            return bool(getattr(int(a), _NUMBERS[operator])(int(b))) if _whole(a, b) else None
    return None


def _whole(*texts: str) -> bool:
    return all(re.fullmatch(r"-?(0|[1-9]\d*)", text) for text in texts)
