"""Base class of environments, which answer the model between its turns."""

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
