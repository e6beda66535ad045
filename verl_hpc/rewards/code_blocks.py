"""Find the program in a response: its fenced blocks, and the one that is meant.

Fences are read in pairs, by the rules of CommonMark (section 4.5): a block ends at a line that has
nothing but as many backticks or tildes as it began with, or more. Models are less strict, so four
more things are read: a block of Python may begin after text on its line, a block may end after its
last line of code or before text, and a line that begins a block of Python ends any block that was
left open.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from verl_hpc.rewards.thinking import behind_thinking

_BACKTICKS = re.compile(r"(?<!`)(`{3,})([^`]*)$")
_TILDES = re.compile(r"(?<!~)(~{3,})(.*)$")
_PYTHON = re.compile(r"[{.]*(?:python|pypy|py)[\d.]*(?![\w+-])", re.IGNORECASE)
_LIST_MARKERS = re.compile(r"(?:[ \t]|[-*+][ \t]|\d+[.)][ \t])*")
_LOOKS_LIKE_PYTHON = re.compile(r"\b(?:def|class|import|print|input|lambda|return)\b")
_READS_INPUT = re.compile(r"\b(?:input|stdin)\b|\bopen\(0")
_BEGINS_AS_PYTHON = re.compile(r"\s*(?:(?:def|class|import|from)[ ]|@|\w+ *= *\S)")
_DEFINED = re.compile(
    r"^(?:[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+|(?=\w+[ \t]*=[ \t]*(?:lambda\b|[A-Za-z_][\w.]*"
    r"[ \t]*$)))(\w+)",
    re.MULTILINE,
)
"""Matches a definition: def f, class F, f = lambda, f = g."""
_BEHIND = "<.*:;,)!?|"
"""Characters that may touch the closing fence of Python: </answer>, <|im_end|>, a full stop, **."""
_MOST_INDENTED = 3
"""Most spaces of a closing fence beyond the opening one's; those in docstrings have more."""


@dataclass
class Block:
    """A fenced block."""

    info: str
    """The words after the opening fence."""
    fence: str
    """The opening fence."""
    indent: int
    """Number of characters before the fence."""
    start: int = 0
    """Character of the text at which its line begins."""
    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def is_python(self) -> bool:
        """Whether it is labelled as Python."""
        return _PYTHON.match(self.info) is not None

    @property
    def text(self) -> str:
        """The lines, without the indentation of the fence."""
        return "".join(_without_indent(line, self.indent) for line in self.lines)

    def is_ended_by(self, line: str) -> bool:
        """Whether a line has the closing fence; code before it is added to the block."""
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        run = len(bare) - len(bare.lstrip(self.fence[0]))
        if run >= len(self.fence):
            rest = bare[run:]
            ends = not rest or rest[0].isspace() or (self.is_python and rest[0] in _BEHIND)
            return ends and indent <= self.indent + _MOST_INDENTED
        code = bare.rstrip(self.fence[0])
        if len(bare) - len(code) == len(self.fence) and self.is_python:
            self.lines.append(line[:indent] + code + "\n")
            return True
        return False


@dataclass(frozen=True)
class Program:
    """The program of a response."""

    text: str
    fenced: bool
    """Whether it is a block and not the whole response."""
    closed: bool
    """Whether its block has a closing fence; else the block ends with the response."""


def program_of(response: str, wanted: Collection[str] = ()) -> Program:
    """Return the program of a response, without its thinking.

    It is the last block that is labelled as Python; of several, the last that defines a name of
    `wanted`, or without such names the last that reads standard input, if there is one. Blocks
    without a label count where none is labelled as Python, in the same way; those with a word such
    as def, import or print come before others. Blocks of other languages never count. A response
    without a block that counts is a program itself, up to the fence of a block that its prompt
    has begun.
    """
    text = behind_thinking(response)
    blocks = blocks_of(text)
    if len(blocks) == 1 and _ends_what_the_prompt_began(blocks[0], text):
        return Program(text[: blocks[0].start], fenced=True, closed=True)
    python = [block for block in blocks if block.is_python]
    bare = [block for block in blocks if not block.info]
    choice = python or [b for b in bare if _LOOKS_LIKE_PYTHON.search(b.text)] or bare
    if not choice:
        return Program(text, fenced=False, closed=False)
    block = ([b for b in choice if _fits(b.text, wanted)] or choice)[-1]
    return Program(block.text, fenced=True, closed=block.closed)


def _ends_what_the_prompt_began(block: Block, text: str) -> bool:
    return (
        not block.info and not block.closed and bool(_BEGINS_AS_PYTHON.match(text[: block.start]))
    )


def _fits(program: str, wanted: Collection[str]) -> bool:
    if not wanted:
        return _READS_INPUT.search(program) is not None
    return not set(wanted).isdisjoint(_DEFINED.findall(program))


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a text, in order."""
    blocks: list[Block] = []
    block: Block | None = None
    position = 0
    for line in text.splitlines(keepends=True):
        opened = _opened_by(line.rstrip(), position)
        position += len(line)
        if block is not None:
            if opened and opened.is_python and len(opened.fence) >= len(block.fence):
                block = opened
                blocks.append(block)
            elif block.is_ended_by(line):
                block.closed = True
                block = None
            else:
                block.lines.append(line)
        elif opened is not None:
            block = opened
            blocks.append(block)
    return blocks


def _opened_by(line: str, start: int) -> Block | None:
    match = _BACKTICKS.search(line) or _TILDES.search(line)
    if match is None:
        return None
    before = line[: match.start()]
    fence, info = match[1], match[2].strip()
    if _LIST_MARKERS.fullmatch(before):
        return Block(info, fence, len(before), start)
    behind_text = Block(info, fence, 0, start)
    return behind_text if behind_text.is_python else None


def _without_indent(line: str, most: int) -> str:
    spaces = len(line) - len(line.lstrip(" \t"))
    return line[min(spaces, most) :]
