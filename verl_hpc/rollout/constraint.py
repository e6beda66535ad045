"""Constrained sampling: restrict sampling to allowed tokens, and record them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from transformers import LogitsProcessor

from verl_hpc.errors import ModelError


class Constraint(Protocol):
    """Function that returns the allowed next tokens, from the tokens only."""

    def __call__(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Sequence[Collection[int]]:
        """Return the ids of the tokens that may follow each prompt and partial response; an end
        token is allowed only if it is among them."""
        ...


class Restricted(LogitsProcessor):
    """Logits processor of one generate call that gives other tokens probability 0.

    Args:
        constraint: returns the allowed tokens.
        prompts: prompts of the rows.
        width: length of the padded prompts.
        ends: tokens that end a response; the first is also the padding.
    """

    def __init__(
        self,
        constraint: Constraint,
        prompts: Sequence[Sequence[int]],
        width: int,
        ends: Sequence[int],
    ) -> None:
        self._constraint, self._prompts, self._width = constraint, prompts, width
        self._ends = list(ends)
        self._steps: list[np.ndarray] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        responses = input_ids[:, self._width :].tolist()
        going = [i for i, ids in enumerate(responses) if not set(ids).intersection(self._ends)]
        allowed_ids = self._constraint(
            [self._prompts[i] for i in going], [responses[i] for i in going]
        )
        allowed = torch.zeros(scores.shape, dtype=torch.bool)
        allowed[:, self._ends[0]] = True  # what pads rows that have ended
        for row, ids in zip(going, allowed_ids, strict=True):
            allowed[row] = False
            allowed[row, _checked(ids, scores.shape[-1], responses[row])] = True
        self._steps.append(np.packbits(allowed.numpy(), axis=-1, bitorder="little"))
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def packed(self, num_tokens: int) -> np.ndarray:
        """Return the allowed tokens of each row and place, (B, num_tokens, bytes) uint8, as in
        `Response.allowed`.

        Raises:
            ModelError: the model sampled without calling the processor.
        """
        if len(self._steps) != num_tokens:
            raise ModelError(
                f"the actor's generate gave {num_tokens} tokens a row and called its "
                f"logits_processor {len(self._steps)} times; hand logits_processor to "
                "transformers' generate, which keeps to the constraint"
            )
        return np.stack(self._steps, axis=1)


def _checked(ids: Collection[int], vocabulary: int, response: Sequence[int]) -> list[int]:
    """Raises: ModelError: `ids` is empty, or has an id outside the vocabulary."""
    chosen = list(ids)
    wrong = next((i for i in chosen if not 0 <= i < vocabulary), None)
    if not chosen or wrong is not None:
        what = "no token" if not chosen else f"token {wrong} of a vocabulary of {vocabulary}"
        raise ModelError(
            f"the constraint allows {what} behind the response {list(response)[-20:]}; let it "
            "allow an end-of-sequence token where the response may end"
        )
    return chosen
