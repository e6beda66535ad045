"""A prefix that keeps the files of one project apart from another's."""

from __future__ import annotations

import tempfile
from typing import Annotated

from pydantic import Field

Namespace = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None
"""A name that a directory may have; None for no prefix."""


def temporary_directory(namespace: str | None) -> tempfile.TemporaryDirectory[str]:
    """Make a directory whose name begins with the namespace; it goes with its context."""
    return tempfile.TemporaryDirectory(prefix=f"{namespace or 'verl_hpc'}-")
