"""What an environment says, as the tokens between two turns of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from verl_hpc.data.prompts import TEMPLATE_S
from verl_hpc.errors import ModelError
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Role = Literal["user", "tool"]
"""Whose message an observation is."""

_SAID = "verlhpcsaidthis"
"""Stands for a turn of the model where a template is looked at; only letters, so that no template
changes or splits it."""


class Observations:
    """Observations as token ids, as the model's chat template writes them.

    What the model has sampled is never encoded again: only the text behind it is, as a template
    writes it after any turn of the model. So tokens that are trained on are those that were
    sampled, also where a template would write earlier turns otherwise once there are later ones
    (some leave out what a model thought).

    Args:
        tokenizer: with a chat template, or `is_chat` is false.
        is_chat: whether prompts are chats; observations otherwise stand as they are.
        role: of an observation's message.

    Raises:
        ModelError: as `tokens`, before any are sampled.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, is_chat: bool, role: Role = "user"
    ) -> None:
        self._tokenizer, self._is_chat, self._role = tokenizer, is_chat, role
        if is_chat:
            self._after_a_turn("x")

    def tokens(self, text: str, response: Sequence[int]) -> list[int]:
        """Token ids behind `response`, up to where the model's next turn begins.

        Args:
            text: of the observation.
            response: the model's turns so far. A turn that ends with a token that the template
                writes at its end is not ended twice.

        Raises:
            ModelError: the chat template fails, does not end, or does not show a turn of the model.
        """
        if not self._is_chat:
            return self._encode(text)
        after = self._after_a_turn(text)
        ending = self._tokenizer.convert_ids_to_tokens(response[-1]) if response else None
        if isinstance(ending, str) and ending and after.lstrip("\n ").startswith(ending):
            after = after.lstrip("\n ").removeprefix(ending)
        return self._encode(after)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _after_a_turn(self, text: str) -> str:
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _SAID},
            {"role": self._role, "content": text},
        ]
        try:
            with time_limit(TEMPLATE_S):
                whole = self._tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False
                )
        except TimeLimitExceeded as error:
            raise ModelError(
                f"the tokenizer's chat template did not end within {TEMPLATE_S:g} s"
            ) from error
        except Exception as error:  # a template is a program
            raise ModelError(
                f"the tokenizer's chat template fails for a message of role {self._role} behind "
                f"one of the model: {type(error).__name__}: {error}; choose another role for "
                "observations"
            ) from error
        _, found, after = str(whole).partition(_SAID)
        if not found:
            raise ModelError(
                "the tokenizer's chat template leaves out a turn of the model that another message "
                "follows, so that a conversation of several turns cannot be written; use another "
                "template, or data.chat: never"
            )
        return after
