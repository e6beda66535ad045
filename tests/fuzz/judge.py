"""What is unclean about the end of a real run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

import verl_hpc.errors
from tests.fuzz.cases import Case
from tests.jobs.launch import differing, tensors_of
from verl_hpc.errors import VerlHpcError

NAMES = "|".join(
    name
    for name, value in vars(verl_hpc.errors).items()
    if isinstance(value, type) and issubclass(value, VerlHpcError)
)
_RANK = r"^verl_hpc: rank \d+( of \d+)? on \S+ failed in [^\n:]+: "
_NAMED = re.compile(rf"(^|{_RANK})({NAMES}): .*\S", re.MULTILINE)
_GONE = re.compile(rf"{_RANK}it (left with status \d+|was ended by SIG[A-Z]+)\b", re.MULTILINE)
CHECKPOINTS = "runs/run/checkpoints"
LAST = f"{CHECKPOINTS}/step_00000002"


def fault(case: Case, directory: Path, undisturbed: Path) -> str | None:
    """What is unclean; None if nothing is."""
    end = json.loads((directory / "end.json").read_text())
    output = (directory / "output.txt").read_text(errors="replace")
    status, tail = end["status"], output[-300:]
    if status is None:
        return f"hangs: {tail}"
    if "Traceback" in output:
        return f"traceback: {tail}"
    if len(output.encode()) > case.most_bytes:
        return f"{len(output)} characters: {tail}"
    wrong = _not_finite(directory)
    if wrong:
        return f"not finite: {wrong[:3]}"
    if status == 0:
        return _wrong_success(case, directory, undisturbed, tail)
    return None if _is_told(case, status, output) else f"status {status}: {tail}"


def _is_told(case: Case, status: int, output: str) -> bool:
    """Whether a failure is one that the case may have, and has the words for it."""
    if case.end == "gone":
        return _GONE.search(output) is not None
    return case.end != "same" and status == 1 and _NAMED.search(output) is not None


def _wrong_success(case: Case, directory: Path, undisturbed: Path, tail: str) -> str | None:
    if case.end in ("error", "gone"):
        return f"taken: {tail}"
    if not (directory / LAST / "index.h5").is_file():
        return f"ends without its last step: {tail}"
    if case.end == "either":
        return None
    wrong = differing(directory / LAST, undisturbed / LAST)
    return f"other weights: {wrong[:3]}" if wrong else None


def _not_finite(directory: Path) -> list[str]:
    """Tensors of saved steps with infinities or NaN, also of a run that has failed since."""
    return [
        f"{file.parent.name} {name}"
        for file in sorted((directory / CHECKPOINTS).glob("step_*/index.h5"))
        for name, values in tensors_of(file.parent).items()
        if values.dtype.kind == "f" and not np.isfinite(values).all()
    ]
