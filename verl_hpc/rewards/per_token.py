"""Read scores that are lists: a number for each token of a response, or for each turn of the
model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_hpc.rewards.request import Request


def listed(found: Any) -> list[Any] | None:
    """Return the numbers of a score that is a list or an array with one dimension; None for others.

    An array of a single number is that number.
    """
    shape = getattr(found, "shape", None)
    if shape is not None and len(shape) == 1 and shape[0] != 1:
        numbers: list[Any] = found.tolist()
        return numbers
    is_text = isinstance(found, str | bytes)
    return list(found) if isinstance(found, Sequence) and not is_text else None


def per_token(numbers: Sequence[float], request: Request) -> list[float]:
    """Return the reward of each token of a response. The number of a turn belongs to its last
    token.

    Args:
        numbers: one for each token of the response (those of an environment included), or one for
            each turn of the model.

    Raises:
        ValueError: the number of numbers is neither of these.
    """
    num_tokens = len(request.response_ids)
    if len(numbers) == num_tokens:
        return list(numbers)
    ends = _turn_ends(request)
    if len(numbers) != len(ends):
        raise ValueError(
            f"the score is a list of {len(numbers)} numbers, and the response has {num_tokens} "
            f"tokens in {len(ends)} turns of the model; give one number for each token, or one for "
            "each turn"
        )
    rewards = [0.0] * num_tokens
    for end, number in zip(ends, numbers, strict=True):
        rewards[end] = number
    return rewards


def _turn_ends(request: Request) -> list[int]:
    """Return the index of the last token of each turn of the model."""
    ends, count = [], 0
    for turn in request.turns:
        count += len(turn["token_ids"])
        if turn["role"] == "assistant":
            ends.append(count - 1)
    return ends
