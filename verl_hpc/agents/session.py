"""The conversations of one program with the model, as a tree of tokens.

A request that continues an earlier one extends its path, whose tokens stay as they were sampled:

    system, user --- turn 1 --- tool --- turn 2 --- tool --- turn 3      a row to train on
                            \\-- user --- turn 4                          another one

What is not continued is a leaf. Each leaf becomes a row; a turn that several leaves share is
trained on in the first of them alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from verl_hpc.data.messages import Message
from verl_hpc.data.observations import Observations
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import ModelError
from verl_hpc.rollout.protocol import Branch, Response
from verl_hpc.rollout.record import TurnRecord

Said = str | Sequence[Message]
"""What the model continues: a text, or the messages of a chat."""


class Writer:
    """Writes what programs say as tokens.

    Args:
        encoder: the run's encoder.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        exists = encoder.template.exists
        self._observations = Observations(encoder, is_chat=True) if exists else None

    def whole(self, said: Said, arguments: Mapping[str, Any]) -> list[int]:
        """Return the token ids of everything said, up to the beginning of the model's turn.

        Raises:
            DataError: the chat template refuses the messages.
            ModelError: the chat template does not end.
        """
        if isinstance(said, str):
            return self._encoder.text_ids(said)
        text = self._encoder.template.render(said, "a request", arguments, asks=True)
        return list(self._encoder.tokenizer.encode(text, add_special_tokens=False))

    def between(self, new: Said, before: Sequence[int], arguments: Mapping[str, Any]) -> list[int]:
        """Return the token ids of what follows a turn of the model.

        Args:
            new: what was said after it.
            before: all tokens up to the end of the turn.
            arguments: arguments of the chat template.

        Raises:
            ModelError: the chat template does not write the messages behind a turn.
        """
        if isinstance(new, str):
            return self._encoder.continued(new)
        assert self._observations is not None, "without a template no chat has begun"
        return self._observations.messages(new, before, arguments)


@dataclass(frozen=True)
class Turn:
    """A turn of the model, and all that was said before it."""

    parent: Turn | None
    """The turn that it continues."""
    compared: Sequence[Any]
    """What `_compared` makes of all that was said up to the end of the turn."""
    prompt: tuple[int, ...]
    """All token ids before the turn."""
    response: Response
    number: int
    """Position among the session's turns, in the order in which they ended."""
    record: TurnRecord

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """All token ids up to its end."""
        return self.prompt + self.response.tokens

    @property
    def experts(self) -> Any:
        """Experts of all tokens but the last (`Response.experts`). A turn that continues another
        may compute it anew; each token keeps those by which the log-probs behind it came about."""
        if self.parent is None or self.response.experts is None:
            return self.response.experts
        before = self.parent.experts
        return np.concatenate([before, self.response.experts[len(before) :]])

    @property
    def path(self) -> list[Turn]:
        """The turns up to this one, the first one first."""
        return [*(self.parent.path if self.parent is not None else ()), self]


class Session:
    """Records the turns of one program.

    Args:
        writer: writes what the program says.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.turns: list[Turn] = []
        self.num_begun = 0
        """Number of requests so far, unfinished ones included."""
        self.num_rewritten = 0
        """Number of conversations that began anew although the session had turns already."""
        self._prompts: dict[tuple[int, ...], int] = {}

    def begin(
        self, said: Said, arguments: Mapping[str, Any]
    ) -> tuple[Turn | None, tuple[int, ...]]:
        """Return the turn that a request continues, if any, and all token ids before the next one.

        Raises:
            DataError, ModelError: the chat template refuses the messages.
        """
        self.num_begun += 1
        parent = self._continued(said)
        if parent is not None:
            new = said[len(parent.compared) :]
            try:
                between = self._writer.between(new, parent.tokens, arguments)
                return parent, (*parent.tokens, *between)
            except ModelError:  # the template writes these messages in a whole conversation only
                pass
        tokens = tuple(self._writer.whole(said, arguments))
        # A template may write other messages as the tokens that there are.
        ends = [t for t in self.turns if tokens[: len(t.tokens)] == t.tokens != tokens]
        parent = max(ends, key=lambda turn: len(turn.tokens), default=None)
        self.num_rewritten += parent is None and bool(self.turns)
        return parent, tokens

    def repetition(self, tokens: tuple[int, ...]) -> int:
        """Count the earlier requests with these tokens, which need other random numbers."""
        self._prompts[tokens] = count = self._prompts.get(tokens, -1) + 1
        return count

    def end(
        self,
        parent: Turn | None,
        tokens: tuple[int, ...],
        said: Said,
        response: Response,
        reply: str | Message,
        begun: float = 0.0,
    ) -> None:
        """Record a turn.

        Args:
            parent: turn that it continues.
            tokens: all token ids before it.
            said: what the program said before it.
            response: what the model sampled.
            reply: the turn as the program gets it.
            begun: when it was asked for, in seconds since the epoch.
        """
        path: Said = f"{said}{reply}" if isinstance(reply, str) else [*_messages(said), reply]
        before = parent.number if parent is not None else None
        span = len(tokens), len(tokens) + len(response.tokens)
        times = begun, time.time()
        record = TurnRecord(before, *span, response.finish_reason, *times, _calls(reply))
        turn = Turn(parent, _compared(path), tokens, response, len(self.turns), record)
        self.turns.append(turn)

    def _continued(self, said: Said) -> Turn | None:
        """Return the longest turn that what was said continues, by its messages or its text."""
        known, best = _compared(said), None
        for turn in self.turns:
            before = turn.compared
            begins = len(before) < len(known) and known[: len(before)] == before
            if begins and (best is None or len(before) > len(best.compared)):
                best = turn
        return best

    @property
    def leaves(self) -> list[Turn]:
        """The turns that nothing continues, in the order in which they ended."""
        continued = {id(turn.parent) for turn in self.turns}
        return [turn for turn in self.turns if id(turn) not in continued]

    def branches(self, rewards: Mapping[int, float]) -> tuple[Branch, ...]:
        """Return a row for each leaf, in the order in which they ended.

        Args:
            rewards: rewards of turns by their numbers.
        """
        trained: set[int] = set()
        branches = []
        for leaf in self.leaves:
            branches.append(_branch(leaf, trained, rewards))
            trained.update(turn.number for turn in leaf.path)
        return tuple(branches)

    def answer(self, rewards: Mapping[int, float]) -> tuple[Branch, ...]:
        """Return one row, of the leaf that ended last, with all of its turns; none without one."""
        return tuple(_branch(leaf, set(), rewards) for leaf in self.turns[-1:])


def _branch(leaf: Turn, trained: set[int], rewards: Mapping[int, float]) -> Branch:
    """Return the row of a leaf.

    Args:
        trained: numbers of turns that another row trains on.
        rewards: rewards of turns by their numbers.
    """
    first, tokens = leaf.path[0], leaf.tokens
    start, versions = len(first.prompt), tuple[int, ...]()
    mask, log_probs = [0] * (len(tokens) - start), [0.0] * (len(tokens) - start)
    rewarded: dict[int, float] = {}
    for turn in leaf.path:
        here = slice(len(turn.prompt) - start, len(turn.tokens) - start)
        log_probs[here] = turn.response.log_probs
        # What was said before a turn is read by the weights that begin it.
        of_turn = turn.response.versions
        versions += of_turn[:1] * (here.start - len(versions)) + of_turn
        if turn.number not in trained:
            mask[here] = [1] * len(turn.response.tokens)
            if turn.number in rewards and turn.response.tokens:
                rewarded[here.stop - 1] = rewards[turn.number]
    response = Response(
        tokens[start:],
        tuple(log_probs),
        leaf.response.finish_reason,
        tuple(mask),
        leaf.experts,
        versions=versions,
    )
    return Branch(first.prompt, response, rewarded)


def _calls(reply: str | Message) -> tuple[str, ...]:
    """Return the calls of tools in a turn, as texts."""
    calls = [] if isinstance(reply, str) else reply.get("tool_calls") or []
    called = [call.get("function", {}) for call in calls]
    return tuple(f"{c.get('name')}({c.get('arguments')})" for c in called)


def _messages(said: Said) -> Sequence[Message]:
    assert not isinstance(said, str), "a text is continued by texts"
    return said


def _compared(said: Said) -> Sequence[Any]:
    """Return what tells two beginnings apart: the characters of a text, or of each message what
    clients send again as it was."""
    return said if isinstance(said, str) else [*map(_essence, said)]


def _essence(message: Message) -> tuple[Any, ...]:
    """Return a message without what clients change: they leave out empty fields, and write the JSON
    of a call anew."""
    calls = [
        (call.get("function", {}).get("name"), _parsed(call.get("function", {}).get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    return (
        message["role"],
        (message.get("content") or "").strip(),
        calls,
        message.get("tool_call_id"),
    )


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
