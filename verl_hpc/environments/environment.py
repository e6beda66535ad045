"""Base classes of environments, which answer the model between its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hpc.data.problem import Problem


@dataclass(frozen=True)
class Done:
    """The conversation is over."""


class Environment:
    """The other side of one conversation. Each response gets a copy, in a process of its own, of an
    environment that is made once. What a copy must not share with the others, such as a directory,
    a random generator, a connection or a thread, must be made in `reset`.

    It is a class of this package, or of a user's file (`rollout.environment.name:
    path/file.py:Name`); `rollout.environment.options` are its keyword arguments.
    """

    def reset(self, problem: Problem) -> None:
        """Begin a conversation: the model is going to answer this row of the data set."""

    def step(self, tokens: Sequence[int], text: str) -> str | Done:
        """Return the observation for a turn of the model, or Done at the end.

        Args:
            tokens: token ids of the turn, as they were sampled.
            text: the turn as text, with its special tokens except the one that ended it.
        """
        raise NotImplementedError


class Tool(Environment):
    """Answers the last call between tags of a turn; a turn without one ends the conversation.

    With rollout.stop: [END] a turn ends where a call does, or with the rest of the token that the
    tag ends in.

    Args:
        begin, end: the tags.
        template: text of the observation; {result} stands for the tool's result.
    """

    def __init__(self, begin: str, end: str, template: str = "{result}") -> None:
        self._begin, self._end, self._template = begin, end, template

    def result(self, call: str) -> str:
        """Return the tool's result for a call."""
        raise NotImplementedError

    def step(self, tokens: Sequence[int], text: str) -> str | Done:  # noqa: ARG002
        before, ends, _ = text.rpartition(self._end)
        _, begins, call = before.rpartition(self._begin)
        if not (begins and ends):
            return Done()
        return self._template.replace("{result}", self.result(call))
