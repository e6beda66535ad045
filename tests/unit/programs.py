"""Programs that stand in for others, and the umask that they and files are made under."""

import os
from contextlib import contextmanager
from pathlib import Path


def program(path: Path, text: str) -> Path:
    """Write a script of the shell that can be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@contextmanager
def umask(mask: int):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
