"""Prompts that are too long, found without encoding all of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Chat, encode_prompt, fit_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_ENCODED = 20_000
"""Prompts of 4 kB: half a minute of one core."""

_logger = logging.getLogger(__name__)


class LengthCheck:
    """Counts tokens where there could be too many, of the first `MOST_ENCODED` such prompts.

    A tokenizer of bytes makes no more tokens of a text than it has bytes, so most prompts are too
    short to need counting. What the chat template adds depends on the roles alone.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: Chat, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._max_tokens = max_tokens
        self._num_encoded = 0
        self._added: dict[tuple[str, ...], int] = {}

    def check(self, problem: Problem) -> None:
        """Look at one prompt.

        Raises:
            DataError, ModelError: it is too long, or cannot be encoded.
        """
        prompt = problem.prompt
        texts = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt]
        num_bytes = sum(len(text.encode()) for text in texts)
        if self._most_added(problem) + num_bytes <= self._max_tokens:
            return
        if self._num_encoded < MOST_ENCODED:
            self._num_encoded += 1
            ids = encode_prompt(problem, self._tokenizer, self._chat)
            fit_prompt(ids, self._max_tokens, "error", problem.where)
            if self._num_encoded == MOST_ENCODED:
                _logger.warning(
                    "the tokens of %s long prompts were counted; others are when they are drawn",
                    f"{MOST_ENCODED:,}",
                )

    def _most_added(self, problem: Problem) -> int:
        """Tokens beside those of the texts."""
        prompt = problem.prompt
        roles = () if isinstance(prompt, str) else tuple(m["role"] for m in prompt)
        if roles not in self._added:
            # Of one letter: some templates take no empty message.
            short = [{"role": r, "content": "x"} for r in roles] if roles else "x"
            ids = encode_prompt(replace(problem, prompt=short), self._tokenizer, self._chat)
            self._added[roles] = len(ids)
        return self._added[roles]
