"""Ask a rank of a run for a debugger, by two small files in the run directory.

attach-RANK.json     a request, which rank 0's watchdog removes
attached-RANK.json   where the rank listens, or why it does not
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.regular_file import read_regular, replace_text
from verl_hpc.errors import ConfigError
from verl_hpc.runs.records import read_record, write_record

_REQUEST = re.compile(r"attach-(\d{1,9})\.json")


@dataclass(frozen=True)
class Listening:
    """Answer of a rank: where its debugger listens."""

    request: str
    rank: int
    host: str
    pid: int
    port: int
    """Port on its node's loopback address."""
    code: str
    """Directory of its copy of this package."""
    error: str = ""
    """Why there is no debugger; the other fields are then meaningless."""


def ask_for_debugger(run_directory: Path, rank: int) -> str:
    """Leave a request; it replaces an earlier one to the same rank.

    Returns: The request's name, which the answer repeats.

    Raises:
        ConfigError: the run directory cannot be written.
    """
    name = secrets.token_hex(8)
    try:
        replace_text(_request(run_directory, rank), json.dumps({"request": name}) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot leave a request in {run_directory}: {error}") from None
    return name


def take_requests(run_directory: Path) -> dict[int, str]:
    """Return the names of waiting requests by rank, and remove them."""
    requests = {}
    for file in sorted(run_directory.glob("attach-*.json")):
        if (name := _REQUEST.fullmatch(file.name)) is None:
            continue
        try:
            text = read_regular(file)
            file.unlink()
            requests[int(name[1])] = str(json.loads(text)["request"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return requests


def withdraw_request(run_directory: Path, rank: int) -> None:
    """Remove the request, if nobody has taken it yet."""
    _request(run_directory, rank).unlink(missing_ok=True)


def answer(run_directory: Path, listening: Listening) -> None:
    """Write where a rank listens.

    Raises:
        OSError: the run directory cannot be written.
    """
    write_record(_answer(run_directory, listening.rank), listening)


def read_answer(run_directory: Path, rank: int, request: str) -> Listening | None:
    """Return the rank's answer to a request; None until there is one."""
    listening = read_record(_answer(run_directory, rank), Listening)
    return listening if listening is not None and listening.request == request else None


def _request(run_directory: Path, rank: int) -> Path:
    return run_directory / f"attach-{rank}.json"


def _answer(run_directory: Path, rank: int) -> Path:
    return run_directory / f"attached-{rank}.json"
