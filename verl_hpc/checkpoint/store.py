"""The directory of a run's steps: list them, point to the newest, and delete old ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from verl_hpc.checkpoint import schema


def complete_steps(root: Path) -> list[Path]:
    """List the step directories with a manifest, newest first, without checking contents."""
    if not root.is_dir():
        return []
    steps = [p for p in root.iterdir() if schema.step_number(p) is not None]
    whole = [p for p in steps if (p / schema.MANIFEST).is_file()]
    return sorted(whole, key=lambda p: schema.step_number(p) or 0, reverse=True)


def point_latest(step: Path) -> None:
    """Point `latest` to this step, atomically."""
    link = step.parent / schema.LATEST
    fresh = step.parent / f".{schema.LATEST}.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(step.name)
    fresh.replace(link)


def prune(root: Path, keep: int, last: int) -> list[Path]:
    """Delete all but the newest `keep` complete steps, and remains of crashes; return the deleted
    steps.

    Steps after `last`, the one just saved, are kept and not counted: the run went back before them
    because they cannot be read.

    The manifest is deleted first, so that an interrupted deletion leaves no step that looks
    complete.

    Raises:
        OSError: a step cannot be deleted.
    """
    reached = [step for step in complete_steps(root) if (schema.step_number(step) or 0) <= last]
    gone = reached[keep:]
    for step in gone:
        (step / schema.MANIFEST).unlink()
    remove_torn(root)
    return gone


def remove_torn(root: Path) -> None:
    """Delete incompletely saved or deleted steps; only the run's owner may call this."""
    if not root.is_dir():
        return
    for path in root.iterdir():
        is_step = schema.step_number(path) is not None
        if path.name.endswith(".partial") or (is_step and not (path / schema.MANIFEST).exists()):
            shutil.rmtree(path, ignore_errors=True)
