"""Encode what an environment says as the tokens between two turns of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verl_hpc.data.messages import Message
from verl_hpc.data.prompts import Encoder
from verl_hpc.data.turns import SAID, special_tokens, turn_ending
from verl_hpc.errors import DataError, ModelError

Role = Literal["user", "tool"]
"""Role of an observation's message."""


class Observations:
    """Observations as token ids, as the model's chat template writes them.

    Sampled turns are never encoded again, only the text after them, as a template writes it after
    any turn of the model. So the tokens trained on are those that were sampled, even if a template
    rewrites earlier turns once later ones exist (some leave out a model's thoughts).

    Args:
        encoder: the run's encoder.
        is_chat: whether prompts are chats; observations otherwise stand as they are.
        role: role of an observation's message.

    Raises:
        ModelError: for the reasons of `tokens`, before any are sampled.
    """

    def __init__(self, encoder: Encoder, is_chat: bool, role: Role = "user") -> None:
        self._encoder, self._is_chat, self._role = encoder, is_chat, role
        if is_chat:
            self._special = special_tokens(encoder.tokenizer)
            self._ending = turn_ending(encoder.template, self._special).written
            self._after_a_turn([{"role": role, "content": "x"}])

    def tokens(
        self, text: str, response: Sequence[int], arguments: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Return the token ids after `response`, up to the beginning of the model's next turn.

        Args:
            text: the observation.
            response: the model's turns so far. A turn that ends with a special token has its end,
                whichever it is: the template's is not written after it.
            arguments: the template's arguments for this conversation, such as enable_thinking.

        Raises:
            ModelError: the chat template fails, does not end, or does not show a turn of the model.
        """
        if not self._is_chat:
            return self._encoder.continued(text)
        return self.messages([{"role": self._role, "content": text}], response, arguments)

    def messages(
        self,
        messages: Sequence[Message],
        response: Sequence[int],
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return `tokens` for messages of several roles, in a chat.

        Raises:
            ModelError: for the reasons of `tokens`.
        """
        after = self._after_a_turn(messages, arguments)
        name = self._encoder.tokenizer.convert_ids_to_tokens(response[-1]) if response else None
        if not isinstance(name, str) or not self._special.fullmatch(name):
            return self._encoder.continued(after)
        return self._encoder.continued(self._without_end(after, name), behind=name)

    def _without_end(self, after: str, name: str) -> str:
        """Return the text after a turn without the special token `name` that ends the turn."""
        if name in self._ending and after.startswith(self._ending):
            return after[self._ending.rindex(name) + len(name) :]
        if after.lstrip("\n ").startswith(name):
            return after.lstrip("\n ").removeprefix(name)
        return after.removeprefix(self._ending)

    def _after_a_turn(
        self, messages: Sequence[Message], arguments: Mapping[str, Any] | None = None
    ) -> str:
        told = [{"role": "user", "content": "x"}, {"role": "assistant", "content": SAID}]
        try:
            whole = self._encoder.template.render(
                [*told, *messages], "an observation", arguments, asks=True
            )
        except DataError as error:
            raise ModelError(
                f"{error}; it has to write a message of role {messages[0]['role']} behind one of "
                "the model: choose another role for observations"
            ) from error
        _, mark, after = whole.partition(SAID)
        if not mark:
            raise ModelError(
                "the tokenizer's chat template leaves out a turn of the model that another message "
                "follows, so that a conversation of several turns cannot be written; use another "
                "template, or data.chat: never"
            )
        return after
