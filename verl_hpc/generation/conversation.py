"""Conversations that an engine is having: turns of the model, and observations between them."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.observations import Observations
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.environments.environment import Done
from verl_hpc.environments.processes import Conversation, Environments, StepFailedError
from verl_hpc.errors import EnvironmentStepError
from verl_hpc.generation.answers import stop_reason
from verl_hpc.rollout.partial import observed, this_turn
from verl_hpc.rollout.protocol import Response, Sampling
from verl_hpc.runtime.control import Control

_WAIT_S = 1.0
"""Between two of the engine's questions whether it is to stop."""
_LATE = "a step takes longer than timeout_s = {:g}, and did not end"


@dataclass(frozen=True)
class Asked:
    """What a response answers."""

    problem: Problem
    is_chat: bool
    """Whether the prompt went through a chat template."""


class Conversations:
    """`Turns` by environments, one for each prompt.

    The first rank of the engine has the environments; all ranks hear what they say. While one takes
    its time the engine generates for the others.

    Args:
        config: limits, and what an error does.
        environments: where they run.
        asked: by the index of the engine's prompt.
        encoder: of the run.
        seed: `seed(index, length)` of the turn that begins behind so many tokens.
        sampling: the tokens of a response at most, and the texts that end one.
        control: of the engine's ranks.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        environments: Environments,
        asked: Sequence[Asked],
        encoder: Encoder,
        seed: Callable[[int, int], int],
        sampling: Sampling,
        control: Control | None = None,
    ) -> None:
        self._config, self._asked = config, asked
        self._seed, self._longest, self._control = seed, sampling.max_tokens, control
        self._encode = {
            chat: Observations(encoder, chat, config.role) for chat in {a.is_chat for a in asked}
        }
        self._turns: dict[int, int] = {}
        self._waiting: dict[int, Response] = {}
        self.cut: set[int] = set()
        """Those that ended because what was said to them leaves no room for an answer."""
        leads = control is None or control.rank == 0
        self._steps = _Steps(config, environments, asked, encoder, sampling.stop) if leads else None

    def close(self) -> None:
        """No environment is needed any more."""
        if self._steps is not None:
            self._steps.end_all()

    @property
    def failures(self) -> Sequence[str]:
        """Why steps failed that ended their conversation; on the first rank."""
        return self._steps.failures if self._steps is not None else ()

    def ended(self, index: int, response: Response) -> None:
        """See `Turns.ended`."""
        self._turns[index] = self._turns.get(index, 0) + 1
        if response.finish_reason == "stop" and self._turns[index] < self._config.max_turns:
            self._waiting[index] = response
        elif self._steps is not None:
            self._steps.end(index)

    def next(self, wait: bool) -> Sequence[tuple[int, Response, int]]:
        """See `Turns.next`."""
        found: list[tuple[int, Response, int]] = []
        for index, said in self._answers(wait).items() if self._waiting else ():
            response = self._waiting.pop(index)
            longer = None if said is None else self._longer(index, response, said)
            if longer is not None:
                found.append((index, longer, self._seed(index, len(longer.tokens))))
            elif self._steps is not None:
                self._steps.end(index)
        return found

    @property
    def under_way(self) -> Collection[int]:
        """See `Turns.under_way`."""
        return self._waiting.keys()

    def _longer(self, index: int, response: Response, said: str) -> Response | None:
        """With what was said behind it; None where that has no tokens, so that two turns would be
        one, or leaves no room for a turn of the model."""
        asked = self._asked[index]
        arguments = asked.problem.template_arguments
        tokens = self._encode[asked.is_chat].tokens(said, response.tokens, arguments)
        if len(response.tokens) + len(tokens) >= self._longest:
            self.cut.add(index)
            return None
        return observed(response, tokens) if tokens else None

    def _answers(self, wait: bool) -> dict[int, str | None]:
        """What is said to turns that wait, the same on all ranks: as `_Steps.answers`."""

        def answers() -> dict[int, str | None]:
            return self._steps.answers(self._waiting, wait) if self._steps is not None else {}

        if self._control is None or self._control.size == 1:
            return answers()
        return self._control.broadcast(self._control.together(answers))


class _Steps:
    """Of the environments of an engine's prompts."""

    def __init__(
        self,
        config: EnvironmentConfig,
        environments: Environments,
        asked: Sequence[Asked],
        encoder: Encoder,
        stop: Sequence[str],
    ) -> None:
        self._config, self._environments, self._stop = config, environments, stop
        self._asked, self._tokenizer = asked, encoder.tokenizer
        self._ends = {encoder.tokenizer.eos_token_id, encoder.turn_end}
        self._conversations: dict[int, Conversation] = {}
        self._selector = selectors.DefaultSelector()
        self._under_way: set[int] = set()
        self.failures: list[str] = []

    def answers(self, waiting: Mapping[int, Response], wait: bool) -> dict[int, str | None]:
        """What is said to turns that wait: None where nothing more is.

        Args:
            waiting: responses up to these turns.
            wait: for an answer, `_WAIT_S` at most.

        Raises:
            EnvironmentStepError: a step failed, and on_error is stop.
        """
        found: dict[int, str | None] = {}
        for index in [i for i in waiting if i not in self._under_way]:
            if index in self._conversations or self._has_room:
                self._tell(index, waiting[index], found)
        until = time.monotonic() + (_WAIT_S if wait else 0.0)
        while self._under_way:
            now = time.monotonic()
            for index in [i for i in self._under_way if self._conversations[i].deadline < now]:
                self._failed(index, _LATE.format(self._config.timeout_s), found)
            left_s = 0.0 if found else max(until - now, 0.0)
            for key, _ in self._selector.select(left_s):
                self._read(key.data, found)
            if found or time.monotonic() >= until:
                break
        return found

    @property
    def _has_room(self) -> bool:
        """Whether one more conversation may begin; others wait until one ends."""
        return len(self._conversations) < self._config.max_conversations

    def end(self, index: int) -> None:
        """It has nothing more to say."""
        self._forget(index)
        if index in self._conversations:
            self._conversations.pop(index).end()

    def end_all(self) -> None:
        """No environment is needed any more."""
        for index in list(self._conversations):
            self.end(index)
        self._selector.close()

    def _tell(self, index: int, response: Response, found: dict[int, str | None]) -> None:
        turn = this_turn(response)
        said = turn[:-1] if self._ends_with_a_token(turn) else turn
        # A tool's tags may be special tokens.
        text = str(self._tokenizer.decode(list(said), skip_special_tokens=False))
        try:
            if index not in self._conversations:
                problem = self._asked[index].problem
                self._conversations[index] = self._environments.begin(problem)
            conversation = self._conversations[index]
            conversation.tell(turn, text)
        except StepFailedError as error:
            self._failed(index, str(error), found)
            return
        self._under_way.add(index)
        self._selector.register(conversation, selectors.EVENT_READ, index)

    def _ends_with_a_token(self, turn: Sequence[int]) -> bool:
        """Whether its last token is one that ends turns, and not the end of a string that does."""
        if not turn or turn[-1] in self._ends:
            return bool(turn)
        return stop_reason(self._tokenizer, turn, False, self._stop) not in self._stop

    def _read(self, index: int, found: dict[int, str | None]) -> None:
        try:
            said = self._conversations[index].answer()
        except StepFailedError as error:
            self._failed(index, str(error), found)
            return
        if said is not None:
            self._forget(index)
            found[index] = None if isinstance(said, Done) else said

    def _forget(self, index: int) -> None:
        if index in self._under_way:
            self._under_way.remove(index)
            self._selector.unregister(self._conversations[index])

    def _failed(self, index: int, reason: str, found: dict[int, str | None]) -> None:
        self.end(index)
        where = self._asked[index].problem.where
        words = f"rollout.environment.name = {self._config.name}, {where}: {reason}"
        if self._config.on_error == "stop":
            raise EnvironmentStepError(
                f"{words}; mend it, or set rollout.environment.on_error: end"
            )
        self.failures.append(words)
        found[index] = None
