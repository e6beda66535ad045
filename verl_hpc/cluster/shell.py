"""Quoting for the one shell that matters: bash, in the batch script."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable

from verl_hpc.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]+")
_NO_EXPANSION = re.compile(r"\$(?![A-Za-z_{])")
_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_TROUBLE = re.compile(r"[^A-Za-z0-9_@+=./~^-]")


def literal(text: str) -> str:
    """A word that the shell takes as it is."""
    return shlex.quote(text)


def expandable(text: str) -> str:
    """A word in which $NAME and ${NAME} are expanded when the script runs, and nothing else is."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'([\\"`])', r"\\\1", text)
    return f'"{_NO_EXPANSION.sub(lambda _: chr(92) + "$", escaped)}"'


def required(text: str, why: str) -> str:
    """`text` whose variables must be set when the script runs, which else ends with `why`."""
    return _NAME.sub(lambda found: f"${{{found[1] or found[2]}:?{why}}}", text)


def control_characters(text: str) -> list[str]:
    """Line breaks and other characters that are not seen; a line break ends a script's comment, or
    an option of sbatch, and what follows it is a command."""
    return sorted({c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")})


def check_words(words: Iterable[tuple[str, str]]) -> None:
    """Refuse words of a command line, each after its option, that a script cannot hold.

    Raises:
        ConfigError: one has a line break or another control character.
    """
    for name, text in words:
        if controls := control_characters(text):
            raise ConfigError(
                f"{name} {text!r}: has {' '.join(map(repr, controls))}, which a batch script "
                "cannot hold; write it in one line"
            )


def check_path(name: str, path: str) -> str:
    """Return a path that bash, Slurm's file name patterns and mount lists all read alike.

    Raises:
        ConfigError: it has a blank or another character that one of them interprets.
    """
    trouble = sorted(set(_TROUBLE.findall(path)))
    if trouble:
        shown = " ".join(map(repr, trouble))
        raise ConfigError(
            f"{name} = {path!r}: {shown} means something to the shell, to Slurm or in a mount "
            "list; use a path of letters, digits and _ @ + = . / ~ ^ -"
        )
    return path
