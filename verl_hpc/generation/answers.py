"""A response with the problem it answers, as reward functions are asked about it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from verl_hpc.data.problem import Problem
from verl_hpc.errors import RewardError
from verl_hpc.rewards.request import Request, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LENGTH = "length"
"""The stop reason of a response that was cut."""


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    problem: Problem
    tokens: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the model has sampled a token."""
    truncated: bool

    @property
    def key(self) -> Hashable:
        """Equal for answers to the same row that a function could not tell apart."""
        return self.problem.index, self.tokens, self.mask, self.truncated

    def request(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> Request:
        """What functions are asked.

        Args:
            tokenizer: the model's.
            stop: rollout.stop.

        Raises:
            RewardError: the tokenizer decodes to something else than text.
        """
        problem = self.problem
        turns = [_turn(tokenizer, *part) for part in spans(self.tokens, self.mask)]
        said = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        return Request(
            problem.index,
            problem.data_source,
            problem.ground_truth,
            problem.extra,
            said[-1] if said else "",
            problem.origin,
            problem.prompt,
            list(self.tokens),
            turns,
            self.truncated,
            problem.columns,
            stop_reason(tokenizer, self.tokens, self.truncated, stop),
        )


def stop_reason(
    tokenizer: PreTrainedTokenizerBase,
    tokens: Sequence[int],
    truncated: bool,
    stop: Sequence[str] = (),
) -> str:
    """What ended a response: "length", the one of `stop` that its last token completes, or the text
    of its last token, which is one that ends responses.

    It follows from the tokens, so that it is the same whatever engine has sampled them.
    """
    if truncated:
        return LENGTH
    for text in stop:
        if _completes(tokenizer, tokens, text):
            return text
    return str(tokenizer.decode([tokens[-1]])) if tokens else ""


def _completes(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], text: str) -> bool:
    """Whether the last token ends, or goes on behind, an occurrence of a text."""
    # A character has four bytes at most, and a token one at least.
    tail = list(tokens[-4 * len(text) - 4 :])
    # Bytes of a character that is not complete yet are shown as \ufffd.
    before = str(tokenizer.decode(tail[:-1])).rstrip("\ufffd")
    return text in str(tokenizer.decode(tail))[max(0, len(before) - len(text) + 1) :]


def spans(tokens: Sequence[int], mask: Sequence[int]) -> list[tuple[bool, list[int]]]:
    """Runs of tokens that the model has sampled, or has not, and which of the two."""
    pairs = groupby(zip(tokens, mask, strict=True), key=lambda pair: bool(pair[1]))
    return [(sampled, [token for token, _ in run]) for sampled, run in pairs]


def _turn(tokenizer: PreTrainedTokenizerBase, sampled: bool, tokens: list[int]) -> Turn:
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    if not isinstance(text, str):
        raise RewardError(f"the tokenizer decodes to {type(text).__name__}, expected a string")
    return {
        "role": "assistant" if sampled else "environment",
        "content": text,
        "token_ids": tokens,
    }
