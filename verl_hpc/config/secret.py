"""Recognise what must not be written down: names of secrets, and credentials in addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SECRET = re.compile(
    r"TOKEN(_|$)|(ACCESS|API|AUTH|HF|HUB|GITHUB|GITLAB|REFRESH|WANDB)_?TOKENS(_|$)"
    r"|(^|_)KEY(_|$)|(ACCESS|API|PRIVATE|SSH)_?KEYS?(_|$)|SECRET|PASSW|PASSPHRASE|CREDENTIAL"
    r"|(^|_)(PASS|PAT|JWT|AUTH|BEARER|COOKIE)$|(^|_)PAT_GIT|_PWD$|AUTHORIZATION|AUTH_HEADERS?$",
    re.I,
)
_CREDENTIALS = re.compile(
    r"[A-Za-z0-9]://([^/\s:@]*:[^/\s@]+|(gh[opsu]_|github_pat_|glpat-|hf_)[^/\s:@]+|[A-Za-z0-9_]{30,})@"
)
"""A password after a name, or a token in the place of the name."""
_SIGNED = re.compile(
    r"[?&]((x-(amz|goog)-)?(signature|credential)|sig|[\w-]*token|([\w-]*[_-])?key)=", re.I
)
"""An address whose query opens what it names to everybody who has the address."""
_ASSIGNED = re.compile(r"""(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)=["']?[^\s"'$`;]""")
"""An assignment of a literal value to a shell variable."""
_ENDS_OF_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")


def looks_secret(name: str) -> bool:
    """True for names such as HF_TOKEN, apiKey or DB_PASS, not for TOKENIZERS_PARALLELISM."""
    return _SECRET.search(_ENDS_OF_WORDS.sub("_", name)) is not None


def holds_secret(value: str) -> bool:
    """True for an address with a password or a token in it, such as mongodb://user:password@host/,
    https://ghp_...@host/ or https://host/rows.jsonl?sig=..."""
    is_signed = "://" in value and _SIGNED.search(value) is not None
    return is_signed or _CREDENTIALS.search(value) is not None


def assigns_secret(line: str) -> bool:
    """True for a shell's `export HF_TOKEN=hf_...`, not for `export HF_TOKEN=$(cat ~/.token)`."""
    return any(looks_secret(name) for name in _ASSIGNED.findall(line))


def secrets_in(values: Any, name: str = "", free: bool = True) -> Iterator[str]:
    """Dotted names below `name`, at any depth, that look secret or whose value holds one.

    Args:
        free: the names are the user's own; those of settings, such as prompt_key, tell nothing.
    """
    if isinstance(values, Mapping):
        for key, value in values.items():
            below = f"{name}.{key}".removeprefix(".")
            named = free and looks_secret(str(key))
            if named and not isinstance(value, bool | None) and value != "":
                yield below
            else:
                yield from secrets_in(value, below, free)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from secrets_in(value, name, free)
    elif isinstance(values, str) and holds_secret(values):
        yield name
