"""A tool that the model calls by writing between two tags."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.environments.environment import Done, Environment


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
