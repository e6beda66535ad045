"""Find prompts that are too long without encoding all of them."""

from __future__ import annotations

import logging
from dataclasses import replace

from verl_hpc.data.messages import text_of
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder, fit_prompt
from verl_hpc.errors import DataError, ModelError
from verl_hpc.hf.pictures import check_there

MOST_BYTES = 80_000_000
"""Most bytes of prompts that are encoded: half a minute of one core."""
_BYTES_OF_IMAGE = 100_000
"""Bytes of a prompt that take as long as an image."""
_COUNTED = frozenset({"role", "content"})

_logger = logging.getLogger(__name__)


class LengthCheck:
    """Counts tokens where there could be too many, in the first `MOST_BYTES` of such prompts.

    A tokenizer of bytes makes no more tokens of a text than it has bytes, so most prompts are too
    short to need counting. The chat template adds tokens that depend on the roles alone, if
    messages have only role and content.
    """

    def __init__(self, encoder: Encoder, max_tokens: int) -> None:
        self._encoder = encoder
        self._max_tokens = max_tokens
        self._bytes_left = MOST_BYTES
        self._added: dict[tuple[str, ...], int | None] = {}

    def check(self, problem: Problem) -> None:
        """Look at one prompt.

        Raises:
            DataError: it is too long, or cannot be encoded.
            ModelError: every prompt is too long, or the template has no end.
        """
        prompt = problem.prompt
        text = prompt if isinstance(prompt, str) else text_of(prompt, between="")
        num_bytes = len(text.encode())
        check_there(problem.images, problem.where)
        num_bytes += _BYTES_OF_IMAGE * len(problem.images)
        added = self._most_added(problem)
        if added is not None and added + num_bytes <= self._max_tokens:
            return
        if added is not None and added > self._max_tokens:
            raise ModelError(
                f"{problem.where}: of a prompt of one letter the tokenizer makes {added:,} tokens, "
                f"and rollout.max_prompt_tokens = {self._max_tokens}; is its chat template right?"
            )
        if self._bytes_left > 0:
            self._bytes_left -= num_bytes
            ids = self._encoder.prompt(problem)
            has_images = bool(problem.images)
            fit_prompt(ids, self._max_tokens, "error", problem.where, has_images)
            if self._bytes_left <= 0:
                _logger.warning(
                    "the tokens of %s MB of long prompts were counted; others are when they are "
                    "drawn",
                    f"{MOST_BYTES / 1e6:g}",
                )

    def _most_added(self, problem: Problem) -> int | None:
        """Return the number of tokens that the template adds; None if it depends on the whole
        prompt."""
        prompt = problem.prompt
        of_messages = not isinstance(prompt, str) and any(set(m) != _COUNTED for m in prompt)
        if problem.images or of_messages or problem.system or problem.template_arguments:
            return None
        roles = () if isinstance(prompt, str) else tuple(m["role"] for m in prompt)
        if roles not in self._added:
            # Messages of one letter: some templates refuse empty ones.
            short = [{"role": r, "content": "x"} for r in roles] if roles else "x"
            try:
                ids = self._encoder.prompt(replace(problem, prompt=short))
                self._added[roles] = len(ids)
            except DataError:  # the template may need a text of a certain form
                self._added[roles] = None
        return self._added[roles]
