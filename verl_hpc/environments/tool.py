"""A tool that the model calls by writing between two tags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_hpc.environments.environment import Done, Environment


class Tool(Environment):
    """Answers a turn that ends with a call between tags; any other turn ends the conversation.

    With rollout.stop: [END] a turn ends where a call does.

    Args:
        begin, end: the tags.
        template: of the observation; {result} is what the tool says.
    """

    def __init__(self, begin: str, end: str, template: str = "{result}") -> None:
        self._call = re.compile(f"{re.escape(begin)}(.*){re.escape(end)}\\s*$", re.DOTALL)
        self._begin, self._template = begin, template

    def result(self, call: str) -> str:
        """What the tool says to a call."""
        raise NotImplementedError

    def step(self, tokens: Sequence[int], text: str) -> str | Done:  # noqa: ARG002
        found = self._call.search(text)
        if found is None:
            return Done()
        call = found.group(1).rpartition(self._begin)[2]
        return self._template.replace("{result}", self.result(call))
