"""Requests to a run that is under way: files in its run directory, one for each kind.

No signal is needed, and anyone who may write to the directory may ask. A request replaces only an
earlier one of its kind: a save must not undo a stop.
"""

from __future__ import annotations

import getpass
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from verl_hpc.config.regular_file import read_regular, replace_text
from verl_hpc.errors import ConfigError
from verl_hpc.section import NonNegative, Section

Kind = Literal["stop", "save"]
KINDS: tuple[Kind, ...] = ("stop", "save")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user data base
        return "somebody"


class Request(Section):
    """One request."""

    kind: Kind
    now: bool = False
    """stop only: do not finish the step under way."""
    after_step: NonNegative = 0
    """Number of steps to finish first."""
    by: str = Field(default_factory=_user)

    @model_validator(mode="after")
    def _consistent(self) -> Request:
        if self.now and (self.kind == "save" or self.after_step):
            raise ValueError("now goes with stop alone, and not with after_step")
        return self


def leave_request(run_directory: Path, request: Request) -> Path:
    """Write the request for the run to find, all at once.

    Raises:
        ConfigError: the directory is not that of a run, or cannot be written.
    """
    if not (run_directory / "config.yaml").exists():
        raise ConfigError(f"{run_directory} is not a run directory: it has no config.yaml")
    target = _file(run_directory, request.kind)
    try:
        replace_text(target, request.model_dump_json() + "\n")
    except OSError as error:
        raise ConfigError(f"cannot leave a request in {run_directory}: {error}") from None
    return target


def read_requests(run_directory: Path) -> list[Request]:
    """The requests that wait, a stop first; unreadable ones are ignored."""
    requests = []
    for kind in KINDS:
        with suppress(OSError, ValidationError):
            content = read_regular(_file(run_directory, kind))
            requests.append(Request.model_validate_json(content))
    return requests


def withdraw(run_directory: Path, kind: Kind) -> None:
    """Remove the request of a kind."""
    _file(run_directory, kind).unlink(missing_ok=True)


def _file(run_directory: Path, kind: Kind) -> Path:
    return run_directory / f"request_{kind}.json"
