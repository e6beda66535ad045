"""A script's words: what is quoted, and what is to be expanded."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.tree import Parameter, Part, Program, Sum, Text, Unread, Word

_BLANK = " \t"
_END = " \t\n;&|()<>"
"""What ends a word outside of quotes."""
_PLAIN = re.compile(r"""[^ \t\n;&|()<>\\'"$`]+""")
_PLAIN_IN_BRACES = re.compile(r"""[^ \t\n;&|()<>\\'"$`}]+""")
_OPENS = {'"': '"', "}": "${", "))": "$(("}
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_SINGLE = re.compile(r"'([^']*)'")
_UNREAD = re.compile(r"\$\{[^}]*\}")
_OLD_SUM = re.compile(r"\$\[[^]]*\]")
_ESCAPED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_DOCUMENT = re.compile(r"<<(-?)(?!<)[ \t]*")
_COMMENT = re.compile(r"(?<![^ \t\n;&|()])#[^\n]*")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_NAME = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])")
_BRACED = re.compile(
    r"\$\{([A-Za-z_]\w*|\d+|[@*])(?:\[([^]]*)\])?(:?[-=+?]|//?|,,?|\^\^?|##?|%%?|:|(?=\}))"
)


class Words:
    """Reads words of a text from where it stands."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.first = text, 0, line
        self.ends = [found.start() for found in re.finditer("\n", text)]
        """Of lines."""
        self.awaited: list[tuple[str, bool]] = []
        """Here-documents that begin behind this line: what ends each, and whether behind tabs."""

    def word(self) -> Word:
        line, start = self.line(), self.at
        parts: list[Part] = []
        while self.at < len(self.text):
            if self.here("<(", ">("):
                parts.append(self._of_a_program())
            elif self.text[self.at] in _END:
                break
            else:
                parts += self._parts()
        word = Word(tuple(parts), line, self.since(start))
        if self.here("(") and _ARRAY.fullmatch(word.bare or ""):
            inner = self._array()
            return replace(word, source=self.since(start), array=inner)
        return word

    def _parts(self) -> list[Part]:
        """The next of a word that is outside of double quotes."""
        plain = _PLAIN.match(self.text, self.at)
        if plain:
            self.at = plain.end()
            return [Text(plain[0], False)]
        character = self.text[self.at]
        if character == "\\":
            following = self.text[self.at + 1 : self.at + 2]
            self.at += 2
            return [] if following == "\n" else [Text(following or "\\", True)]
        if character == "'":
            return [Text(self._enclosed(_SINGLE, "'")[1], True)]
        if character == '"':
            return self._double()
        return [self._dollar(quoted=False)]

    def _of_a_program(self) -> Part:
        """`<(...)`, and `>(...)`."""
        start = self.at
        self.at += 1
        self.skip_brackets()
        return self.unread(start, "is a file with what a program prints, and nothing is run")

    def _array(self) -> tuple[Word, ...]:
        opened, found = self.at, list[Word]()
        self.at += 1
        while True:
            self.blanks(" \t\n")
            if self.at >= len(self.text):
                raise self._open("(", opened)
            if self.here(")"):
                self.at += 1
                return tuple(found)
            if self.here("#"):
                self.at = self.find("\n")
            elif self.text[self.at] in _END:
                raise ConfigError(f"line {self.line()}: {self.text[self.at]} within an array")
            else:
                found.append(self.word())

    def _double(self) -> list[Part]:
        """Between double quotes."""
        opened = self.at
        self.at += 1
        parts = self._quoted('"', opened)
        self.at += 1
        return parts or [Text("", True)]

    def _quoted(self, closing: str, opened: int) -> list[Part]:
        """As between double quotes, up to what closes it, which stays."""
        parts: list[Part] = []
        depth = 0
        while depth or not self.here(closing):
            if self.at >= len(self.text):
                raise self._open(_OPENS[closing], opened)
            character = self.text[self.at]
            if character in "$`":
                parts.append(self._dollar(quoted=True))
                continue
            if character == "\\":
                self.at += 1
                following = self.text[self.at : self.at + 1]
                character = following if following in '$`"\\\n' + closing else f"\\{following}"
                character = character.removeprefix("\n")
            elif character == '"':  # within ${NAME:-...} or $((...))
                parts += self._double()
                continue
            elif closing == "))":
                depth += (character == "(") - (character == ")")
            parts.append(Text(character, True))
            self.at += 1
        return parts

    def _dollar(self, quoted: bool) -> Part:
        start = self.at
        if self.here("`"):
            body = re.sub(r"\\([`$\\])", r"\1", self._enclosed(_BACKTICKS, "`")[1])
            return Program(self.since(start), body, quoted)
        if self.here("$(("):
            self.at += 3
            line, parts = self.line(), self._quoted("))", start)
            inner = Word(tuple(parts), line, self.since(start + 3))
            self.at += 2
            return Sum(self.since(start), inner, quoted)
        if self.here("$("):
            self.at += 1
            self.skip_brackets()
            return Program(self.since(start), self.text[start + 2 : self.at - 1], quoted)
        if self.here("${"):
            return self._braced(quoted)
        if self.here("$["):
            self._enclosed(_OLD_SUM, "$[")
            return self.unread(start, "is arithmetic of old; write $((...))")
        if self.here("$'") and not quoted:
            self._enclosed(_ESCAPED, "$'")
            return self.unread(start, "is text with escapes; write it in plain quotes")
        named = _NAME.match(self.text, start)
        if named is None:
            self.at += 1
            return Text("" if self.here('"') and not quoted else "$", True)
        self.at = named.end()
        name = named[1]
        listed = name if name in ("@", "*") else None
        return Parameter(named[0], "@" if listed else name, listed, "", None, quoted)

    def _braced(self, quoted: bool) -> Part:
        start, line = self.at, self.line()
        head = _BRACED.match(self.text, start)
        if head is None:
            self._enclosed(_UNREAD, "${")
            return self.unread(
                start, "is not read; an interpolation of Hydra's goes into single quotes"
            )
        self.at = head.end()
        parts: list[Part] = []
        if quoted:
            parts = self._quoted("}", start) or [Text("", True)]
        while not self.here("}"):
            if self.at >= len(self.text):
                raise self._open("${", start)
            if self.text[self.at] in _END:
                parts.append(Text(self.text[self.at], False))
                self.at += 1
            elif plain := _PLAIN_IN_BRACES.match(self.text, self.at):
                self.at = plain.end()
                parts.append(Text(plain[0], False))
            else:
                parts += self._parts()
        argument = Word(tuple(parts), line, self.since(head.end()))
        self.at += 1
        name, index = head[1], head[2]
        if name in ("@", "*"):
            name, index = "@", name
        return Parameter(self.since(start), name, index, head[3], argument, quoted)

    def _enclosed(self, pattern: re.Pattern[str], opening: str) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self._open(opening, self.at)
        self.at = found.end()
        return found

    def skip_brackets(self) -> None:
        """From a bracket to behind the one that closes it."""
        opened, depth, outside = self.at, 0, self.awaited
        self.awaited = []
        programs = not self.here("((")
        while True:
            if self.at >= len(self.text):
                raise self._open("(", opened)
            if programs and (comment := _COMMENT.match(self.text, self.at)):
                self.at = comment.end()
            elif programs and (document := _DOCUMENT.match(self.text, self.at)):
                self.at = document.end()
                self.await_document(self.word(), tabs=bool(document[1]))
            elif self.here("\n"):
                self.at += 1
                self.skip_documents()
            elif self.text[self.at] in "()":
                depth += 1 if self.text[self.at] == "(" else -1
                self.at += 1
                if depth == 0:
                    self.awaited = outside
                    return
            elif self.text[self.at] in _END:
                self.at += 1
            else:
                self._parts()

    def await_document(self, word: Word, tabs: bool) -> None:
        """A here-document begins behind this line, which the word's text ends."""
        ends = "".join(part.text for part in word.parts if isinstance(part, Text))
        self.awaited.append((ends, tabs))

    def skip_documents(self) -> None:
        """From the line behind those that await them."""
        for ends, tabs in self.awaited:
            while self.at < len(self.text):
                start, self.at = self.at, self.find("\n") + 1
                line = self.text[start : self.at - 1]
                if (line.lstrip("\t") if tabs else line) == ends:
                    break
        self.awaited = []

    def blanks(self, blank: str = _BLANK) -> bool:
        """Over blanks and continued lines; whether there was one of those."""
        continued = False
        while self.at < len(self.text):
            if self.here("\\\n"):
                continued = True
                self.at += 2
            elif self.text[self.at] in blank:
                self.at += 1
            else:
                break
        return continued

    def here(self, *found: str) -> bool:
        return self.text.startswith(found, self.at)

    def find(self, character: str) -> int:
        """Where a character is next; the end if it is nowhere."""
        found = self.text.find(character, self.at)
        return len(self.text) if found < 0 else found

    def since(self, start: int) -> str:
        return self.text[start : self.at]

    def unread(self, start: int, why: str) -> Unread:
        return Unread(self.since(start), why)

    def line(self, at: int | None = None) -> int:
        return self.first + bisect_left(self.ends, self.at if at is None else at)

    def _open(self, what: str, at: int) -> ConfigError:
        return ConfigError(f"line {self.line(at)}: {what} is not closed")
