"""Find the program in a response: its fenced blocks, and the one that is meant."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from verl_hpc.rewards.thinking import behind_thinking

_BLOCK = re.compile(
    r"(?P<indent>^[ \t]*|(?<=[^`~\n]))(?P<fence>`{3,}+|~{3,}+)[ \t]*(?P<info>[^`\n]*)\n"
    r"(?P<text>.*?)"
    # Fences in docstrings stand further to the right.
    r"(?P<end>^(?P=indent)[ ]{0,3}(?P=fence)[`~]*+(?![\w{])|(?<=\S)(?P=fence)[ \t]*$"
    r"|(?=^[ \t]*(?P=fence)[ \t]*(?:python|py)\b)|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
"""Matches a fenced block. It ends at its closing fence, after its last line of code if that has the
fence, where the next block of Python begins, or with the text."""
_PYTHON = re.compile(r"[{.]*(?:python|pypy|py)[\d.]*(?![\w+-])", re.IGNORECASE)
_LOOKS_LIKE_PYTHON = re.compile(r"\b(?:def|class|import|print|input|lambda|return)\b")
_READS_INPUT = re.compile(r"\b(?:input|stdin)\b|\bopen\(0")
_BEGINS_AS_PYTHON = re.compile(r"\s*(?:(?:def|class|import|from)[ ]|@|\w+ *= *\S)")
_DEFINED = re.compile(
    r"^(?:[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+|(?=\w+[ \t]*=[ \t]*(?:lambda\b|[A-Za-z_][\w.]*"
    r"[ \t]*$)))(\w+)",
    re.MULTILINE,
)
"""Matches a definition: def f, class F, f = lambda, f = g."""


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
    blocks = list(_BLOCK.finditer(text))
    if len(blocks) == 1 and _ends_what_the_prompt_began(blocks[0]):
        return Program(text[: blocks[0].start()], fenced=True, closed=True)
    python = [block for block in blocks if _PYTHON.match(block["info"])]
    bare = [block for block in blocks if not block["info"].strip()]
    choice = python or [b for b in bare if _LOOKS_LIKE_PYTHON.search(b["text"])] or bare
    if not choice:
        return Program(text, fenced=False, closed=False)
    block = ([b for b in choice if _fits(b["text"], wanted)] or choice)[-1]
    program = re.sub(rf"^{block['indent']}", "", block["text"], flags=re.MULTILINE)
    return Program(program, fenced=True, closed=bool(block["end"]))


def _ends_what_the_prompt_began(block: re.Match[str]) -> bool:
    is_bare = not block["info"].strip() and not block["end"]
    return is_bare and _BEGINS_AS_PYTHON.match(block.string[: block.start()]) is not None


def _fits(program: str, wanted: Collection[str]) -> bool:
    if not wanted:
        return _READS_INPUT.search(program) is not None
    return not set(wanted).isdisjoint(_DEFINED.findall(program))
