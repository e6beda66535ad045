"""The directory of a run's steps: which are there, which is the newest, which may go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hpc.checkpoint import schema
from verl_hpc.errors import CheckpointError


def complete_steps(root: Path) -> list[Path]:
    """Step directories that have a manifest, newest first; their contents are not checked."""
    if not root.is_dir():
        return []
    steps = [p for p in root.iterdir() if schema.step_number(p) is not None]
    whole = [p for p in steps if (p / schema.MANIFEST).is_file()]
    return sorted(whole, key=lambda p: schema.step_number(p) or 0, reverse=True)


def read_manifest(step: Path, check_files: bool = True) -> Mapping[str, Any]:
    """A step's manifest, checked (if `check_files`) against the files that are there.

    Raises:
        CheckpointError: no manifest, an unknown format, or a file that is missing or has another
            size than was written.
    """
    path = step / schema.MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, files = manifest["format"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{step}: no readable manifest ({error}); not a whole step") from None
    if version != schema.FORMAT_VERSION:
        raise CheckpointError(
            f"{step}: format {version}, this program reads format {schema.FORMAT_VERSION}"
        )
    for name, size in files.items() if check_files else ():
        file = step / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes"
            raise CheckpointError(f"{step}: {name} {state}, {size} were written")
    return manifest


def point_latest(step: Path) -> None:
    """Let `latest` name this step, atomically."""
    link = step.parent / schema.LATEST
    fresh = step.parent / f".{schema.LATEST}.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(step.name)
    fresh.replace(link)


def prune(root: Path, keep: int) -> list[Path]:
    """Delete all but the newest `keep` complete steps, and what crashes left; returns what went.

    The manifest goes first, so that a deletion cut short leaves no half step that looks whole.
    """
    gone = complete_steps(root)[keep:]
    for step in gone:
        (step / schema.MANIFEST).unlink()
    torn = [
        p
        for p in root.iterdir()
        if p.name.endswith(".partial")
        or (schema.step_number(p) is not None and not (p / schema.MANIFEST).exists())
    ]
    for step in torn:
        shutil.rmtree(step, ignore_errors=True)
    return gone
