"""What people ask of a run that is under way: a file in its run directory.

No signal is needed, and whoever may write to the directory may ask.
"""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from verl_hpc.config.base import NonNegative, Section
from verl_hpc.errors import ConfigError

FILE = "request.json"


class Request(Section):
    """One request; a later one replaces it."""

    kind: Literal["stop", "save"]
    now: bool = False
    """stop only: do not finish the step under way."""
    after_step: NonNegative = 0
    """Not before this many steps are done."""
    by: str = Field(default_factory=lambda: _user())

    @model_validator(mode="after")
    def _consistent(self) -> Request:
        if self.now and (self.kind == "save" or self.after_step):
            raise ValueError("now goes with stop alone, and not with after_step")
        return self


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user data base
        return "somebody"


def leave_request(run_directory: Path, request: Request) -> Path:
    """Write the request for the run to find, all at once.

    Raises:
        ConfigError: the directory is not that of a run, or cannot be written.
    """
    if not (run_directory / "config.yaml").exists():
        raise ConfigError(f"{run_directory} is no run directory: it has no config.yaml")
    target = run_directory / FILE
    fresh = target.with_suffix(".new")
    try:
        fresh.write_text(request.model_dump_json() + "\n", encoding="utf-8")
        fresh.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot leave a request in {run_directory}: {error}") from None
    return target


def read_request(run_directory: Path) -> Request | None:
    """The request that waits, if there is one; what cannot be read is none."""
    try:
        return Request.model_validate_json((run_directory / FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def withdraw(run_directory: Path) -> None:
    """Remove the request."""
    (run_directory / FILE).unlink(missing_ok=True)
