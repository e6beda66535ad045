"""A shell script's commands and words, as bash parses them; nothing is expanded here.

Own code, since the libraries do not fit: bashlex knows neither arrays nor `$((...))` and is GPL,
tree-sitter-bash splits words at continued lines, and shlex loses what was quoted.
"""

from __future__ import annotations

import re
from dataclasses import replace

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.tree import Command, Parameter, Part, Program, Sum, Text, Unread, Word

_BLANK = " \t"
_END = " \t\n;&|()<>"
"""What ends a word outside of quotes."""
_PLAIN = re.compile(r"""[^ \t\n;&|()<>\\'"$`]+""")
_PLAIN_IN_BRACES = re.compile(r"""[^ \t\n;&|()<>\\'"$`}]+""")
_OPENS = {'"': '"', "}": "${", "))": "$(("}
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ESCAPED = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_REDIRECTION = re.compile(r"(?:\d*(?:<<<|<<-?|<&|<>|>&|>>|>\||<|>)|&>>?)")
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_FUNCTION = re.compile(r"([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_NAME = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])")
_BRACED = re.compile(
    r"\$\{([A-Za-z_]\w*|\d+|[@*])(?:\[([^]]*)\])?(:?[-=+?]|//?|,,?|\^\^?|##?|%%?|:|(?=\}))"
)


def commands_of(text: str, line: int = 1) -> list[Command]:
    """All commands of a script, those within blocks as well.

    Args:
        line: of the first one, for messages.

    Raises:
        ConfigError: a quote or bracket is not closed.
    """
    return _Scanner(text, line).commands()


class _Scanner:
    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.first = text, 0, line
        self.awaited: list[tuple[str, bool]] = []
        """Here-documents that begin behind this line: what ends each, and whether behind tabs."""

    def commands(self) -> list[Command]:
        found: list[Command] = []
        words: list[Word] = []
        before, cut = "\n", None
        while True:
            continued = self._blanks()
            operator = _OPERATOR.match(self.text, self.at)
            if self.at >= len(self.text) or (operator and not self._here("&>", "((")):
                after = operator[0] if operator else "\n"
                if words or after != "\n":  # `&&` may end a line
                    line = words[0].line if words else self._line()
                    found.append(Command(tuple(words), line, before, after, cut))
                    words, before, cut = [], after, None
                if operator is None:
                    return found
                self.at = operator.end()
                if after == "\n":
                    self._skip_documents()
            elif self._here("#"):
                cut = self._line() if continued and words else None
                self.at = self._next("\n")
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self._redirect(redirection)
            else:
                words += self._head(words)

    def _head(self, before: list[Word]) -> list[Word]:
        """A word, or `NAME()` as `function NAME`."""
        line, start = self._line(), self.at
        if self._here("(("):
            self._skip_brackets()
            return [
                Word((self._unread(start, "is arithmetic that assigns"),), line, self._from(start))
            ]
        named = _FUNCTION.match(self.text, self.at)
        if named is None:
            return [self._word()]
        self.at = named.end()
        names = [named[1]] if before and before[-1].bare == "function" else ["function", named[1]]
        return [Word((Text(name, False),), line, name) for name in names]

    def _word(self) -> Word:
        line, start = self._line(), self.at
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in _END:
            parts += self._parts()
        word = Word(tuple(parts), line, self._from(start))
        if self._here("(") and _ARRAY.fullmatch(word.bare or ""):
            inner = self._array()
            return replace(word, source=self._from(start), array=inner)
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
            start = self.at + 1
            self.at = self._next("'", start, "'") + 1
            return [Text(self.text[start : self.at - 1], True)]
        if character == '"':
            return self._double()
        return [self._dollar(quoted=False)]

    def _array(self) -> tuple[Word, ...]:
        opened, found = self.at, list[Word]()
        self.at += 1
        while True:
            self._blanks(" \t\n")
            if self.at >= len(self.text):
                raise self._open("(", opened)
            if self._here(")"):
                self.at += 1
                return tuple(found)
            if self._here("#"):
                self.at = self._next("\n")
            elif self.text[self.at] in _END:
                raise ConfigError(f"line {self._line()}: {self.text[self.at]} within an array")
            else:
                found.append(self._word())

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
        while depth or not self._here(closing):
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
        if self._here("`"):
            end = _BACKTICKS.match(self.text, start)
            if end is None:
                raise self._open("`", start)
            self.at = end.end()
            return Program(end[0], re.sub(r"\\([`$\\])", r"\1", end[1]), quoted)
        if self._here("$(("):
            self.at += 3
            line, parts = self._line(), self._quoted("))", start)
            inner = Word(tuple(parts), line, self._from(start + 3))
            self.at += 2
            return Sum(self._from(start), inner, quoted)
        if self._here("$("):
            self.at += 1
            self._skip_brackets()
            return Program(self._from(start), self.text[start + 2 : self.at - 1], quoted)
        if self._here("${"):
            return self._braced(quoted)
        if self._here("$'") and not quoted:
            self.at += 1
            end = _ESCAPED.match(self.text, self.at)
            if end is None:
                raise self._open("$'", start)
            self.at = end.end()
            return self._unread(start, "is text with escapes; write it in plain quotes")
        named = _NAME.match(self.text, start)
        if named is None:
            self.at += 1
            return Text("" if self._here('"') and not quoted else "$", True)
        self.at = named.end()
        name = named[1]
        listed = name if name in ("@", "*") else None
        return Parameter(named[0], "@" if listed else name, listed, "", None, quoted)

    def _braced(self, quoted: bool) -> Part:
        start, line = self.at, self._line()
        head = _BRACED.match(self.text, start)
        if head is None:
            while not self._here("}"):
                if self.at >= len(self.text):
                    raise self._open("${", start)
                self.at += 1
            self.at += 1
            return self._unread(
                start, "is not read; an interpolation of Hydra's goes into single quotes"
            )
        self.at = head.end()
        parts: list[Part] = []
        if quoted:
            parts = self._quoted("}", start) or [Text("", True)]
        while not self._here("}"):
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
        argument = Word(tuple(parts), line, self._from(head.end()))
        self.at += 1
        name, index = head[1], head[2]
        if name in ("@", "*"):
            name, index = "@", name
        return Parameter(self._from(start), name, index, head[3], argument, quoted)

    def _redirect(self, redirection: re.Match[str]) -> None:
        """Over a redirection and the file that it names."""
        self.at = redirection.end()
        self._blanks()
        if self._here("<(", ">("):
            self.at += 1
            self._skip_brackets()
            return
        word = self._word()
        if redirection[0].lstrip("0123456789") in ("<<", "<<-"):
            ends = "".join(part.text for part in word.parts if isinstance(part, Text))
            self.awaited.append((ends, redirection[0].endswith("-")))

    def _skip_documents(self) -> None:
        for ends, tabs in self.awaited:
            while self.at < len(self.text):
                start, self.at = self.at, self._next("\n") + 1
                line = self.text[start : self.at - 1]
                if (line.lstrip("\t") if tabs else line) == ends:
                    break
        self.awaited = []

    def _skip_brackets(self) -> None:
        """From a bracket to behind the one that closes it."""
        opened, depth = self.at, 0
        while True:
            if self.at >= len(self.text):
                raise self._open("(", opened)
            if self.text[self.at] in "()":
                depth += 1 if self.text[self.at] == "(" else -1
                self.at += 1
                if depth == 0:
                    return
            elif self.text[self.at] in _END:
                self.at += 1
            else:
                self._parts()

    def _blanks(self, blank: str = _BLANK) -> bool:
        """Over blanks and continued lines; whether there was one of those."""
        continued = False
        while self.at < len(self.text):
            if self._here("\\\n"):
                continued = True
                self.at += 2
            elif self.text[self.at] in blank:
                self.at += 1
            else:
                break
        return continued

    def _here(self, *found: str) -> bool:
        return self.text.startswith(found, self.at)

    def _next(self, character: str, start: int | None = None, must: str = "") -> int:
        """Where a character is next; the end if it is nowhere."""
        found = self.text.find(character, self.at if start is None else start)
        if found < 0 and must:
            raise self._open(must, self.at)
        return len(self.text) if found < 0 else found

    def _from(self, start: int) -> str:
        return self.text[start : self.at]

    def _unread(self, start: int, why: str) -> Unread:
        return Unread(self._from(start), why)

    def _line(self, at: int | None = None) -> int:
        return self.first + self.text.count("\n", 0, self.at if at is None else at)

    def _open(self, what: str, at: int) -> ConfigError:
        return ConfigError(f"line {self._line(at)}: {what} is not closed")
