"""Output heads of a decoder: the vocabulary, a value per token, or a score of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.shard_map import TensorSpec

Head = Literal["language_model", "value", "score"]
"""Output layer: logits of the vocabulary, a value per token (a critic), or one score (a Hugging
Face sequence classifier with num_labels 1)."""

VALUE_HEAD = "value_head.weight"
"""Logical name of a critic's output projection, shape (1, hidden)."""
SCORE_HEAD = "score.weight"
"""Logical name of a sequence classifier's, shape (1, hidden), as in transformers."""

HEAD_TENSORS: Mapping[Head, str] = {"value": VALUE_HEAD, "score": SCORE_HEAD}
"""Heads that are a projection to one number."""


def model_tensors(
    arch: Architecture, head: Head, dtype: str | None = None
) -> dict[str, TensorSpec]:
    """Logical tensors of a model with this head, by Hugging Face name; all of `dtype`, or of the
    architecture's own if None.

    A projection to one number takes the place of lm_head.weight.
    """
    # Files of a critic or a reward model have a head of their own.
    others = HEAD_TENSORS.values()
    tensors = {name: spec for name, spec in arch.tensors(dtype).items() if name not in others}
    if head in HEAD_TENSORS:
        tensors.pop("lm_head.weight", None)
        tensors[HEAD_TENSORS[head]] = TensorSpec((1, arch.hidden_size), dtype or arch.dtype)
    return tensors
