"""Facts about samples as rows of numbers, 21 bytes per sample, to send between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_hpc.step.batch import Sample

_ROW: Any = np.dtype(
    [
        ("index", "<i4"),
        ("group", "<i4"),
        ("prompt_length", "<i4"),
        ("response_length", "<i4"),
        ("truncated", "?"),
        ("image_bytes", "<i4"),
    ]
)


def sample_rows(samples: Sequence[Sample]) -> Any:
    """Return (n,) rows of a structured dtype with the fields of `Sample`."""
    rows = [
        (s.index, s.group, s.prompt_length, s.response_length, s.truncated, s.image_bytes)
        for s in samples
    ]
    return np.array(rows, _ROW)


def samples_of(rows: Any) -> list[Sample]:
    """Invert `sample_rows`."""
    return [Sample(*row) for row in rows.tolist()]
