"""The terminal that a rank's output ends on, which its launcher may stand before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_VARIABLE = "VERL_HPC_TERMINAL_COLUMNS"


def for_ranks() -> dict[str, str]:
    """Variables that tell ranks, whose output is a pipe, of the terminal of this process."""
    return {_VARIABLE: str(_own_columns())} if sys.stdout.isatty() else {}


def is_terminal() -> bool:
    """Whether what this process prints is read on a terminal, as far as it can know."""
    return sys.stdout.isatty() or _VARIABLE in os.environ


def columns() -> int | None:
    """How wide it is: what COLUMNS says, or the launcher, or the terminal; None if nobody does."""
    told = _number(os.environ, "COLUMNS") or _number(os.environ, _VARIABLE)
    return told or (_own_columns() if sys.stdout.isatty() else None)


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) or None if text.isdecimal() else None


def _own_columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):  # a stream that only says that it is one
        return 80
