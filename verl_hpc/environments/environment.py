"""What every environment is: it answers the model between its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_hpc.data.problem import Problem


@dataclass(frozen=True)
class Done:
    """The conversation is over."""


class Environment:
    """One conversation's other side; each response has an environment of its own: a copy, in a
    process of its own, of one that is made once. What a copy must not share with the others, such
    as a directory, a random generator, a connection or a thread, is made in `reset`.

    One is a class of this package, or of a user's file (`rollout.environment.name:
    path/file.py:Name`); `rollout.environment.options` are its keyword arguments.
    """

    def reset(self, problem: Problem) -> None:
        """Begin: the model is going to answer this row of the data set."""

    def step(self, tokens: Sequence[int], text: str) -> str | Done:
        """What is said to a turn of the model, or that there is nothing more to say.

        Args:
            tokens: ids of the turn, as they were sampled.
            text: the turn as text, with its special tokens but for the one that ended it.
        """
        raise NotImplementedError
