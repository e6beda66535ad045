"""The directory of a run's steps: which are there, which is the newest, which may go."""

from __future__ import annotations

import shutil
from pathlib import Path

from verl_hpc.checkpoint import schema


def complete_steps(root: Path) -> list[Path]:
    """Step directories that have a manifest, newest first; their contents are not checked."""
    if not root.is_dir():
        return []
    steps = [p for p in root.iterdir() if schema.step_number(p) is not None]
    whole = [p for p in steps if (p / schema.MANIFEST).is_file()]
    return sorted(whole, key=lambda p: schema.step_number(p) or 0, reverse=True)


def point_latest(step: Path) -> None:
    """Let `latest` name this step, atomically."""
    link = step.parent / schema.LATEST
    fresh = step.parent / f".{schema.LATEST}.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(step.name)
    fresh.replace(link)


def prune(root: Path, keep: int, last: int) -> list[Path]:
    """Delete all but the newest `keep` complete steps, and what crashes left; returns what went.

    Steps after `last`, the one that was just saved, are left and not counted: the run went back
    before them because they cannot be read.

    The manifest goes first, so that a deletion cut short leaves no half step that looks whole.

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
    """Delete steps that no save has finished, or no deletion; only for whom the run belongs to."""
    if not root.is_dir():
        return
    for path in root.iterdir():
        is_step = schema.step_number(path) is not None
        if path.name.endswith(".partial") or (is_step and not (path / schema.MANIFEST).exists()):
            shutil.rmtree(path, ignore_errors=True)
