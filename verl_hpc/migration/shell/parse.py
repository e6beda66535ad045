"""A shell script's commands and words, as bash parses them; nothing is expanded here.

Own code, since the libraries do not fit: bashlex knows neither arrays nor `$((...))` and is GPL,
tree-sitter-bash splits words at continued lines, and shlex loses what was quoted.
"""

from __future__ import annotations

import re

from verl_hpc.migration.shell.tree import Command, Text, Word
from verl_hpc.migration.shell.words import Words

_REDIRECTION = re.compile(r"(?:\d*(?:<<<|<<-?|<&|<>|>&|>>|>\||<|>)|&>>?)")
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_FUNCTION = re.compile(r"([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)")


def commands_of(text: str, line: int = 1) -> list[Command]:
    """All commands of a script, those within blocks as well.

    Args:
        line: of the first one, for messages.

    Raises:
        ConfigError: a quote or bracket is not closed.
    """
    return _Commands(text, line).commands()


class _Commands(Words):
    def commands(self) -> list[Command]:
        found: list[Command] = []
        words: list[Word] = []
        before, cut = "\n", None
        while True:
            continued = self.blanks()
            operator = _OPERATOR.match(self.text, self.at)
            if self.at >= len(self.text) or (operator and not self.here("&>", "((")):
                after = operator[0] if operator else "\n"
                if words or after != "\n":  # `&&` may end a line
                    line = words[0].line if words else self.line()
                    found.append(Command(tuple(words), line, before, after, cut))
                    words, before, cut = [], after, None
                if operator is None:
                    return found
                self.at = operator.end()
                if after == "\n":
                    self.skip_documents()
            elif self.here("#"):
                cut = self.line() if continued and words else None
                self.at = self.find("\n")
            elif self.here("<(", ">("):
                words.append(self.word())
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self._redirect(redirection)
            else:
                words += self._head(words)

    def _head(self, before: list[Word]) -> list[Word]:
        """A word, or `NAME()` as `function NAME`."""
        line, start = self.line(), self.at
        if self.here("(("):
            self.skip_brackets()
            return [
                Word((self.unread(start, "is arithmetic that assigns"),), line, self.since(start))
            ]
        named = _FUNCTION.match(self.text, self.at)
        if named is None:
            return [self.word()]
        self.at = named.end()
        names = [named[1]] if before and before[-1].bare == "function" else ["function", named[1]]
        return [Word((Text(name, False),), line, name) for name in names]

    def _redirect(self, redirection: re.Match[str]) -> None:
        """Over a redirection and the file that it names."""
        self.at = redirection.end()
        self.blanks()
        if self.here("(", "<(", ">("):  # of a command's output
            self.at += not self.here("(")
            self.skip_brackets()
            return
        word = self.word()
        if redirection[0].lstrip("0123456789") in ("<<", "<<-"):
            self.await_document(word, tabs=redirection[0].endswith("-"))
