"""A prefix that keeps the files of one project apart from another's."""

from __future__ import annotations

import re
import tempfile

from verl_hpc.errors import ConfigError


def namespaced(namespace: str | None) -> str:
    """The namespace, "" for none.

    Raises:
        ConfigError: it could not name a directory.
    """
    if namespace is None:
        return ""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", namespace):
        raise ConfigError(
            f"namespace = {namespace!r}: letters, digits, '.', '_' and '-', at most 100, a letter "
            "or digit first"
        )
    return namespace


def temporary_directory(namespace: str) -> tempfile.TemporaryDirectory[str]:
    """One whose name begins with the namespace; it goes with its context."""
    return tempfile.TemporaryDirectory(prefix=f"{namespace or 'verl_hpc'}-")
