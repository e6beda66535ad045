"""Facts about samples as rows of numbers, 17 bytes per sample, to send between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_hpc.step.batch import Sample

_FIELDS = {
    "index": "<i4",
    "group": "<i4",
    "prompt_length": "<i4",
    "response_length": "<i4",
    "truncated": "?",
}
_OF_IMAGES = {"image_bytes": "<i4"}


def sample_rows(samples: Sequence[Sample], with_images: bool = False) -> Any:
    """Return (n,) rows of a structured dtype with the fields of `Sample`.

    Args:
        samples: of this rank.
        with_images: whether prompts may have images, the same on all ranks; adds 4 bytes a sample.
    """
    fields = _FIELDS | (_OF_IMAGES if with_images else {})
    rows = [tuple(getattr(sample, name) for name in fields) for sample in samples]
    return np.array(rows, np.dtype(list(fields.items())))


def samples_of(rows: Any) -> list[Sample]:
    """Invert `sample_rows`."""
    return [Sample(*row) for row in rows.tolist()]
