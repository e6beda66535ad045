"""Multi-turn conversations of an engine: the model's turns, and observations between them."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.observations import Observations
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.environments.environment import Done
from verl_hpc.environments.processes import Conversation, Environments, StepFailedError
from verl_hpc.errors import EnvironmentStepError
from verl_hpc.generation.answers import stop_reason
from verl_hpc.generation.score import some_reasons
from verl_hpc.generation.sessions import PREFIX, ConversationRecorder, session_metrics
from verl_hpc.rollout.partial import observed, this_turn
from verl_hpc.rollout.protocol import Episode, Feed, FeedAround, Request, Response, Sampling
from verl_hpc.runtime.control import Control
from verl_hpc.step.batch import MASK, Columns
from verl_hpc.step.placement import Placement

_logger = logging.getLogger(__name__)

TURNS_MEAN, TURNS_MAX = "rollout/turns/mean", "rollout/turns/max"
STEPS_FAILED = f"{PREFIX}num_failed"

_WAIT_S = 1.0
"""Longest wait for an observation, so that the engine can check whether to stop."""
_LATE = "a step takes longer than timeout_s = {:g}, and did not end"


class Conversations(FeedAround):
    """A feed with one environment per request, which answers the turns of a response.

    The engine's first rank runs the environments and broadcasts their answers. While one
    environment is slow the engine generates for the others.

    Args:
        feed: gets responses whose last turn has ended.
        config: limits, and the reaction to an error.
        environments: starts conversations with environments.
        problems: problem of each request.
        encoder: the run's encoder.
        seed: `seed(index, length)` of the turn that starts after `length` tokens.
        sampling: token limit of a response, and its stop strings.
        control: control plane of the engine's ranks.
    """

    def __init__(
        self,
        feed: Feed,
        config: EnvironmentConfig,
        environments: Environments,
        problems: Sequence[Problem],
        encoder: Encoder,
        seed: Callable[[int, int], int],
        sampling: Sampling,
        control: Control | None = None,
    ) -> None:
        super().__init__(feed)
        self._config, self._problems, self._encoder = config, problems, encoder
        self._seed, self._longest, self._control = seed, sampling.max_tokens, control
        self._observations = {
            chat: Observations(encoder, chat, config.role)
            for chat in set(map(encoder.is_chat, problems))
        }
        self._turns: dict[int, int] = {}
        self._recorder = ConversationRecorder([len(request.prompt) for request in feed.requests])
        self._waiting: dict[int, Response] = {}
        """Responses whose last turn awaits an observation."""
        leads = control is None or control.rank == 0
        steps = config, environments, problems, encoder, sampling.stop
        self._steps = _Steps(*steps) if leads else None

    def close(self) -> None:
        """End all environments."""
        if self._steps is not None:
            self._steps.end_all()

    @property
    def failures(self) -> Sequence[str]:
        """Errors of steps that ended their conversation, on the first rank."""
        return [*self._steps.failures.values()] if self._steps is not None else ()

    def ended(self, index: int, response: Response) -> None:
        self._turns[index] = self._turns.get(index, 0) + 1
        self._recorder.end(index, response)
        if response.finish_reason == "stop" and self._turns[index] < self._config.max_turns:
            self._waiting[index] = response
        else:
            self._end(index, response, "max_turns")

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        started = [*super().next(num_running)]
        while self._waiting:
            for index, said in self._answers(wait=not (num_running or started)).items():
                response = self._waiting.pop(index)
                longer = response if said is None else self._longer(index, response, said)
                if longer.finish_reason == "unfinished":
                    seed = self._seed(index, len(longer.tokens))
                    asked = self.requests[index]
                    started.append((index, replace(asked, seed=seed, prefix=longer)))
                else:
                    self._end(index, longer, "done")
            if num_running or started or self.stops(asks=True):
                break
        for index, _ in started:
            self._recorder.begin(index)
        return started

    def _end(self, index: int, response: Response, why: str) -> None:
        """End a conversation, and its environment.

        Args:
            why: what ended it, unless it failed or reached the limit of its tokens.
        """
        if self._steps is not None:
            self._steps.end(index)
            why = "failed" if index in self._steps.failures else why
        if response.finish_reason == "length":
            why = "length"
        record = self._recorder.record(index, self._problems[index].data_source, why)
        super().ended(index, replace(response, episode=Episode((), None, record)))

    def _longer(self, index: int, response: Response, said: str) -> Response:
        """Append an observation to a response. One without tokens, which would join two turns, ends
        the response, and so does one that leaves no room for a turn of the model."""
        problem = self._problems[index]
        observations = self._observations[self._encoder.is_chat(problem)]
        tokens = observations.tokens(said, response.tokens, problem.template_arguments)
        if len(response.tokens) + len(tokens) >= self._longest:
            return replace(response, finish_reason="length")
        return observed(response, tokens) if tokens else response

    def _answers(self, wait: bool) -> dict[int, str | None]:
        """Return `_Steps.answers` of the waiting turns, equal on all ranks."""

        def answers() -> dict[int, str | None]:
            return self._steps.answers(self._waiting, wait) if self._steps is not None else {}

        if self._control is None or self._control.size == 1:
            return answers()
        return self._control.broadcast(self._control.together(answers))


class _Steps:
    """Steps of the environments of an engine's prompts, on its first rank."""

    def __init__(
        self,
        config: EnvironmentConfig,
        environments: Environments,
        problems: Sequence[Problem],
        encoder: Encoder,
        stop: Sequence[str],
    ) -> None:
        self._config, self._environments, self._stop = config, environments, stop
        self._problems, self._tokenizer = problems, encoder.tokenizer
        self._ends = {encoder.tokenizer.eos_token_id, encoder.turn_end}
        self._conversations: dict[int, Conversation] = {}
        self._selector = selectors.DefaultSelector()
        self._under_way: set[int] = set()
        self.failures: dict[int, str] = {}
        """Errors of steps that ended their conversation, by prompt."""

    def answers(self, waiting: Mapping[int, Response], wait: bool) -> dict[int, str | None]:
        """Return the observations that have arrived, by prompt; None where a conversation has
        ended.

        Args:
            waiting: responses whose last turn awaits an observation.
            wait: whether to wait for an observation, at most `_WAIT_S`.

        Raises:
            EnvironmentStepError: a step failed, and on_error is stop.
        """
        observations: dict[int, str | None] = {}
        for index in [i for i in waiting if i not in self._under_way]:
            if index in self._conversations or self._has_room:
                self._tell(index, waiting[index], observations)
        # Return at the first observations; meanwhile end the conversations whose step is too slow.
        until = time.monotonic() + (_WAIT_S if wait else 0.0)
        while self._under_way:
            now = time.monotonic()
            for index in [i for i in self._under_way if self._conversations[i].deadline < now]:
                self._failed(index, _LATE.format(self._config.timeout_s), observations)
            left_s = 0.0 if observations else max(until - now, 0.0)
            for key, _ in self._selector.select(left_s):
                self._read(key.data, observations)
            if observations or time.monotonic() >= until:
                break
        return observations

    @property
    def _has_room(self) -> bool:
        """Whether another conversation may start; otherwise it waits until one ends."""
        return len(self._conversations) < self._config.max_conversations

    def end(self, index: int) -> None:
        """End a prompt's environment."""
        self._forget(index)
        if index in self._conversations:
            self._conversations.pop(index).end()

    def end_all(self) -> None:
        """End all environments, and close the selector."""
        for index in list(self._conversations):
            self.end(index)
        self._selector.close()

    def _tell(self, index: int, response: Response, observations: dict[int, str | None]) -> None:
        turn = this_turn(response)
        said = turn[:-1] if self._ends_with_a_token(turn) else turn
        # A tool's tags may be special tokens.
        text = str(self._tokenizer.decode(list(said), skip_special_tokens=False))
        try:
            if index not in self._conversations:
                self._conversations[index] = self._environments.begin(self._problems[index])
            conversation = self._conversations[index]
            conversation.tell(turn, text)
        except StepFailedError as error:
            self._failed(index, str(error), observations)
            return
        self._under_way.add(index)
        self._selector.register(conversation, selectors.EVENT_READ, index)

    def _ends_with_a_token(self, turn: Sequence[int]) -> bool:
        """Whether a turn's last token is an end token, rather than the end of a stop string."""
        if not turn or turn[-1] in self._ends:
            return bool(turn)
        return stop_reason(self._tokenizer, turn, False, self._stop) not in self._stop

    def _read(self, index: int, observations: dict[int, str | None]) -> None:
        try:
            said = self._conversations[index].answer()
        except StepFailedError as error:
            self._failed(index, str(error), observations)
            return
        if said is not None:
            self._forget(index)
            observations[index] = None if isinstance(said, Done) else said

    def _forget(self, index: int) -> None:
        if index in self._under_way:
            self._under_way.remove(index)
            self._selector.unregister(self._conversations[index])

    def _failed(self, index: int, reason: str, observations: dict[int, str | None]) -> None:
        self.end(index)
        where = self._problems[index].where
        words = f"rollout.environment.name = {self._config.name}, {where}: {reason}"
        if self._config.on_error == "stop":
            raise EnvironmentStepError(
                f"{words}; mend it, or set rollout.environment.on_error: end"
            )
        self.failures[index] = words
        observations[index] = None


def turn_metrics(place: Placement, columns: Columns, failures: Sequence[str]) -> dict[str, float]:
    """Return metrics of the model's turns per response, and of failed environment steps."""
    counts = [_num_turns(mask) for mask in columns[MASK]]
    mine = (counts, len(failures), some_reasons(failures))
    gathered = place.control.allgather(mine if place.leads_group else ([], 0, []))
    turns = [count for counts, _, _ in gathered for count in counts]
    num_failed = sum(failed for _, failed, _ in gathered)
    if num_failed and place.leads:
        _logger.warning(
            "%s conversations ended because a step of their environment failed: %s",
            num_failed,
            "; ".join(some_reasons(r for _, _, part in gathered for r in part)),
        )
    return {
        TURNS_MEAN: sum(turns) / max(len(turns), 1),
        TURNS_MAX: float(max(turns, default=0)),
        STEPS_FAILED: float(num_failed),
    } | session_metrics(place, columns.records.values())


def _num_turns(mask: torch.Tensor) -> int:
    """Count the runs of ones in a (T,) mask."""
    before = torch.cat([mask.new_zeros(1), mask[:-1]])
    return int(((mask == 1) & (before == 0)).sum())
