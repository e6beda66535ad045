"""Sampling from the tokens alone that a constraint allows, and which these were."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from transformers import LogitsProcessor

from verl_hpc.errors import ModelError


class Constraint(Protocol):
    """Which tokens may come next; a function of the tokens alone."""

    def __call__(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Sequence[Collection[int]]:
        """Ids of the tokens that may follow each prompt and response so far; a token that ends
        responses is allowed where one is named."""
        ...


class Restricted(LogitsProcessor):
    """Of one call of generate: other tokens have probability 0.

    Args:
        constraint: says what is allowed.
        prompts: of the rows.
        width: of the padded prompts.
        ends: tokens that end a response; the first pads.
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
        found = self._constraint([self._prompts[i] for i in going], [responses[i] for i in going])
        allowed = torch.zeros(scores.shape, dtype=torch.bool)
        allowed[:, self._ends[0]] = True  # what pads rows that have ended
        for row, ids in zip(going, found, strict=True):
            allowed[row] = False
            allowed[row, _checked(ids, scores.shape[-1], responses[row])] = True
        self._steps.append(np.packbits(allowed.numpy(), axis=-1, bitorder="little"))
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def packed(self, num_tokens: int) -> np.ndarray:
        """Of each row and token, (B, num_tokens, bytes) uint8, as `Response.allowed`.

        Raises:
            ModelError: the model sampled without asking.
        """
        if len(self._steps) != num_tokens:
            raise ModelError(
                f"the actor's generate gave {num_tokens} tokens a row and called its "
                f"logits_processor {len(self._steps)} times; hand logits_processor to "
                "transformers' generate, which keeps to the constraint"
            )
        return np.stack(self._steps, axis=1)


def _checked(ids: Collection[int], vocabulary: int, response: Sequence[int]) -> list[int]:
    """Raises: ModelError: there are none, or there is no such token."""
    found = list(ids)
    wrong = next((i for i in found if not 0 <= i < vocabulary), None)
    if not found or wrong is not None:
        what = "no token" if not found else f"token {wrong} of a vocabulary of {vocabulary}"
        raise ModelError(
            f"the constraint allows {what} behind the response {list(response)[-20:]}; let it "
            "allow an end-of-sequence token where the response may end"
        )
    return found
