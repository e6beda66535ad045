"""Directories that a container sees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

IMAGE = "$IMAGE"
"""The script's variable that holds a container's image."""
_MOUNT = re.compile(r"[^:,+\s]+(:[^:,+\s]+(:(ro|rw))?)?")


@dataclass(frozen=True)
class Mount:
    """A path outside, where it is seen inside, and who asked for it."""

    source: str
    target: str
    read_only: bool
    origin: str

    @property
    def text(self) -> str:
        """`SOURCE:TARGET`, with `:ro` if it cannot be written to."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"

    def covers(self, path: str) -> bool:
        """Whether a path inside the container lies on this mount."""
        return PurePosixPath(path).is_relative_to(self.target)


def check_mount(text: str) -> str:
    """Return a mount as it was written.

    Raises:
        ValueError: it is not SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro.
    """
    if not _MOUNT.fullmatch(text):
        raise ValueError(f"{text!r} is not a mount; write SOURCE[:TARGET[:ro]]")
    return text


MountText = Annotated[str, AfterValidator(check_mount)]


def parse_mount(text: str, origin: str) -> Mount:
    """Read a mount that `check_mount` let pass."""
    source, *rest = text.split(":")
    return Mount(source, rest[0] if rest else source, rest[1:] == ["ro"], origin)
