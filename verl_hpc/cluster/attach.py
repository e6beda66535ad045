"""Asking one rank of a run for a debugger: two small files in the run directory.

attach.json     which rank is asked; rank 0's watchdog takes it away
attached.json   where the rank listens, or why it does not
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import read_json, read_regular
from verl_hpc.errors import ConfigError

REQUEST, ANSWER = "attach.json", "attached.json"


@dataclass(frozen=True)
class Listening:
    """What a rank answers."""

    request: str
    rank: int
    host: str
    pid: int
    port: int
    """Of the loopback address of its node."""
    code: str
    """Directory that its copy of this package is in."""
    error: str = ""
    """Why there is no debugger; the rest says nothing then."""


def ask_for_debugger(run_directory: Path, rank: int) -> str:
    """Leave the request; a later one replaces an earlier one.

    Returns:
        Its name, which the answer repeats.

    Raises:
        ConfigError: the run directory cannot be written.
    """
    name = secrets.token_hex(8)
    try:
        _write(run_directory / REQUEST, {"request": name, "rank": rank})
    except OSError as error:
        raise ConfigError(f"cannot leave a request in {run_directory}: {error}") from None
    return name


def take_request(run_directory: Path) -> str | None:
    """The request that waits, as JSON, and no longer; None if there is none."""
    file = run_directory / REQUEST
    try:
        text = read_regular(file).decode("utf-8")
        file.unlink()
        found = json.loads(text)
        return json.dumps({"request": str(found["request"]), "rank": int(found["rank"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def withdraw_request(run_directory: Path) -> None:
    """Take the request away, if nobody has yet."""
    (run_directory / REQUEST).unlink(missing_ok=True)


def answer(run_directory: Path, listening: Listening) -> None:
    """Say where a rank listens.

    Raises:
        OSError: the run directory cannot be written.
    """
    _write(run_directory / ANSWER, asdict(listening))


def read_answer(run_directory: Path, request: str) -> Listening | None:
    """The answer to a request; None while there is none."""
    found = read_json(run_directory / ANSWER, lambda answer: Listening(**answer))
    return found if found is not None and found.request == request else None


def _write(target: Path, value: dict[str, Any]) -> None:
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps(value) + "\n", encoding="utf-8")
    fresh.replace(target)
