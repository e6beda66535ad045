"""A response with its problem, and the request to reward functions made of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from verl_hpc.data.problem import Problem
from verl_hpc.errors import RewardError
from verl_hpc.rewards.request import Request, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LENGTH = "length"
"""Stop reason of a response that reached the length limit."""


@dataclass(frozen=True)
class Answer:
    """A complete response with its problem."""

    problem: Problem
    tokens: tuple[int, ...]
    mask: tuple[int, ...]
    """1 for each token that the model sampled."""
    truncated: bool
    rewards: tuple[float, ...] | None = None
    """Rewards of the tokens that a program wrote."""

    @property
    def key(self) -> Hashable:
        """Key that is equal for answers that a reward function cannot distinguish."""
        return self.problem.index, self.tokens, self.mask, self.truncated, self.rewards

    def request(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> Request:
        """Return the request to reward functions.

        Args:
            tokenizer: the model's tokenizer.
            stop: rollout.stop.

        Raises:
            RewardError: the tokenizer does not decode to text.
        """
        problem, said = self.problem, ""
        turns: list[Turn] = []
        # A turn is a run of tokens that the model sampled, or that it did not.
        for sampled, run in groupby(zip(self.tokens, self.mask, strict=True), itemgetter(1)):
            tokens = [token for token, _ in run]
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            if not isinstance(text, str):
                given = type(text).__name__
                raise RewardError(f"the tokenizer decodes to {given}, expected a string")
            said = text if sampled else said
            role: Literal["assistant", "environment"] = "assistant" if sampled else "environment"
            turns.append({"role": role, "content": text, "token_ids": tokens})
        return Request(
            problem.index,
            problem.data_source,
            problem.ground_truth,
            problem.extra,
            said,
            problem.origin,
            problem.prompt,
            list(self.tokens),
            turns,
            self.truncated,
            problem.columns,
            stop_reason(tokenizer, self.tokens, self.truncated, stop),
            program_rewards=self.rewards,
        )


def stop_reason(
    tokenizer: PreTrainedTokenizerBase,
    tokens: Sequence[int],
    truncated: bool,
    stop: Sequence[str] = (),
) -> str:
    """Return what ended a response: "length", the string of `stop` that its last token completes,
    or else the text of its last token, which is an end token.

    It follows from the tokens, so it does not depend on the engine.
    """
    if truncated:
        return LENGTH
    for text in stop:
        if _completes(tokenizer, tokens, text):
            return text
    return str(tokenizer.decode([tokens[-1]])) if tokens else ""


def _completes(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], text: str) -> bool:
    """Whether the last token completes an occurrence of a text, which may end within the token."""
    # A character has four bytes at most, and a token one at least.
    tail = list(tokens[-4 * len(text) - 4 :])
    # Bytes of a character that is not complete yet are shown as \ufffd.
    before = str(tokenizer.decode(tail[:-1])).rstrip("\ufffd")
    return text in str(tokenizer.decode(tail))[max(0, len(before) - len(text) + 1) :]
