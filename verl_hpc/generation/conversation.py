"""Multi-turn conversations of an engine: the model's turns, and observations between them."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
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


class LiveConversations:
    """Conversations under way; equal on all ranks of an engine, but for their environments, which
    its first rank has."""

    def __init__(self) -> None:
        self.steps: _Steps | None = None
        self.turns: dict[Hashable, int] = {}
        """Number of turns that have ended."""
        self.waiting: set[Hashable] = set()
        """Those whose last turn awaits an observation."""
        self.recorder = ConversationRecorder()

    def end(self, keys: Collection[Hashable]) -> None:
        """End some conversations, if they are under way."""
        for key in keys:
            if self.steps is not None:
                self.steps.end(key)
            self.turns.pop(key, None)
            self.recorder.forget(key)
            self.waiting.discard(key)

    def end_all(self) -> None:
        """End all environments."""
        if self.steps is not None:
            self.steps.end_all()
            self.steps = None
        self.turns.clear()
        self.waiting.clear()


class Conversations(FeedAround):
    """A feed with one environment per request, which answers the turns of a response.

    The engine's first rank runs the environments and broadcasts their answers. While one
    environment is slow the engine generates for the others. When the call ends before a
    conversation does, its environment stays in `live`, and the call that asks for the response the
    next time goes on with it.

    Args:
        feed: gets responses whose last turn has ended.
        config: limits, and the reaction to an error.
        environments: starts conversations with environments.
        problems: problem of each request.
        encoder: the run's encoder.
        seed: `seed(index, length)` of the turn that starts after `length` tokens.
        sampling: token limit of a response, and its stop strings.
        control: control plane of the engine's ranks.
        keys: names of the requests' conversations, the same in all calls; by default their indices.
        live: conversations that earlier calls have left, and that this one leaves; without it all
            end with the call.
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
        *,
        keys: Sequence[Hashable] | None = None,
        live: LiveConversations | None = None,
    ) -> None:
        super().__init__(feed)
        self._keys = range(len(problems)) if keys is None else keys
        self._stays, self._live = live is not None, live or LiveConversations()
        self._config, self._problems, self._encoder = config, problems, encoder
        self._seed, self._longest, self._control = seed, sampling.max_tokens, control
        self._observations = {
            chat: Observations(encoder, chat, config.role)
            for chat in set(map(encoder.is_chat, problems))
        }
        self._waiting: dict[int, Response] = {}
        """Responses whose last turn awaits an observation."""
        self._failed: dict[Hashable, str] = {}
        steps = None
        if control is None or control.rank == 0:
            steps = self._live.steps or _Steps(config, environments, encoder, sampling.stop)
            steps.problems, steps.failures = (
                dict(zip(self._keys, problems, strict=True)),
                self._failed,
            )
        self._live.steps = self._steps = steps

    @property
    def failures(self) -> Sequence[str]:
        """Errors of steps that ended their conversation, on the first rank."""
        return [*self._failed.values()]

    def close(self) -> None:
        """End all environments, unless they outlive the call."""
        if not self._stays:
            self._live.end_all()

    def ended(self, index: int, response: Response) -> None:
        if not response.is_finished:
            super().ended(index, response)
            return
        key, turns = self._keys[index], self._live.turns
        turns[key] = turns.get(key, 0) + 1
        self._live.recorder.end(key, len(self.requests[index].prompt), response)
        if response.finish_reason == "stop" and turns[key] < self._config.max_turns:
            self._wait(index, response)
        else:
            self._end(index, response, "max_turns")

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        started = []
        for index, request in super().next(num_running):
            if self._keys[index] in self._live.waiting:
                self._waiting[index] = replace(request.prefix, finish_reason="stop")
            else:
                started.append((index, request))
        while self._waiting:
            for index, said in self._answers(wait=not (num_running or started)).items():
                response = self._waiting.pop(index)
                longer = response if said is None else self._longer(index, response, said)
                self._live.waiting.remove(self._keys[index])
                if not longer.is_finished:
                    super().ended(index, longer)
                    seed = self._seed(index, len(longer.tokens))
                    asked = self.requests[index]
                    started.append((index, replace(asked, seed=seed, prefix=longer)))
                else:
                    self._end(index, longer, "done")
            if num_running or started or self.stops(asks=True):
                break
        for index, _ in started:
            self._live.recorder.begin(self._keys[index])
        return started

    def _wait(self, index: int, response: Response) -> None:
        """Wait for what the environment says, in a later call if this one ends before."""
        self._waiting[index] = response
        self._live.waiting.add(self._keys[index])
        super().ended(index, replace(response, finish_reason="unfinished"))

    def _end(self, index: int, response: Response, why: str) -> None:
        """End a conversation, and its environment.

        Args:
            why: what ended it, unless it failed or reached the limit of its tokens.
        """
        key = self._keys[index]
        del self._live.turns[key]
        if self._steps is not None:
            self._steps.end(key)
            why = "failed" if key in self._failed else why
        if response.finish_reason == "length":
            why = "length"
        record = self._live.recorder.record(key, self._problems[index].data_source, why)
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
        """Return `_Steps.answers` of the waiting turns by index, equal on all ranks."""
        waiting = {self._keys[index]: response for index, response in self._waiting.items()}

        def answers() -> dict[Hashable, str | None]:
            return self._steps.answers(waiting, wait) if self._steps is not None else {}

        if self._control is None or self._control.size == 1:
            said = answers()
        else:
            said = self._control.broadcast(self._control.together(answers))
        return {
            index: said[self._keys[index]] for index in self._waiting if self._keys[index] in said
        }


class _Steps:
    """Steps of the environments of an engine's prompts, on its first rank."""

    problems: Mapping[Hashable, Problem]

    def __init__(
        self,
        config: EnvironmentConfig,
        environments: Environments,
        encoder: Encoder,
        stop: Sequence[str],
    ) -> None:
        self._config, self._environments, self._stop = config, environments, stop
        self._tokenizer = encoder.tokenizer
        self._ends = {encoder.tokenizer.eos_token_id, encoder.turn_end}
        self._conversations: dict[Hashable, Conversation] = {}
        self._selector = selectors.DefaultSelector()
        self._under_way: set[Hashable] = set()
        self.failures: dict[Hashable, str] = {}

    def answers(
        self, waiting: Mapping[Hashable, Response], wait: bool
    ) -> dict[Hashable, str | None]:
        """Return the observations that have arrived, by conversation; None where it has ended.

        Args:
            waiting: responses whose last turn awaits an observation.
            wait: whether to wait for an observation, at most `_WAIT_S`.

        Raises:
            EnvironmentStepError: a step failed, and on_error is stop.
        """
        observations: dict[Hashable, str | None] = {}
        for key in [k for k in waiting if k not in self._under_way]:
            if key in self._conversations or self._has_room:
                self._tell(key, waiting[key], observations)
        # Return at the first observations; meanwhile end the conversations whose step is too slow.
        until = time.monotonic() + (_WAIT_S if wait else 0.0)
        while self._under_way:
            left_s = 0.0 if observations else max(until - time.monotonic(), 0.0)
            for ready, _ in self._selector.select(left_s):
                self._read(ready.data, observations)
            # Only now: what has said something since an earlier call is not late.
            now = time.monotonic()
            for key in [k for k in self._under_way if self._conversations[k].deadline < now]:
                self._failed(key, _LATE.format(self._config.timeout_s), observations)
            if observations or now >= until:
                break
        return observations

    @property
    def _has_room(self) -> bool:
        """Whether another conversation may start; otherwise it waits until one ends."""
        return len(self._conversations) < self._config.max_conversations

    def end(self, key: Hashable) -> None:
        """End a conversation's environment."""
        self._forget(key)
        if key in self._conversations:
            self._conversations.pop(key).end()

    def end_all(self) -> None:
        """End all environments, and close the selector."""
        for key in list(self._conversations):
            self.end(key)
        self._selector.close()

    def _tell(
        self, key: Hashable, response: Response, observations: dict[Hashable, str | None]
    ) -> None:
        turn = this_turn(response)
        said = turn[:-1] if self._ends_with_a_token(turn) else turn
        # A tool's tags may be special tokens.
        text = str(self._tokenizer.decode(list(said), skip_special_tokens=False))
        try:
            if key not in self._conversations:
                self._conversations[key] = self._environments.begin(self.problems[key])
            conversation = self._conversations[key]
            conversation.tell(turn, text)
        except StepFailedError as error:
            self._failed(key, str(error), observations)
            return
        self._under_way.add(key)
        self._selector.register(conversation, selectors.EVENT_READ, key)

    def _ends_with_a_token(self, turn: Sequence[int]) -> bool:
        """Whether a turn's last token is an end token, rather than the end of a stop string."""
        if not turn or turn[-1] in self._ends:
            return bool(turn)
        return stop_reason(self._tokenizer, turn, False, self._stop) not in self._stop

    def _read(self, key: Hashable, observations: dict[Hashable, str | None]) -> None:
        try:
            said = self._conversations[key].answer()
        except StepFailedError as error:
            self._failed(key, str(error), observations)
            return
        if said is not None:
            self._forget(key)
            observations[key] = None if isinstance(said, Done) else said

    def _forget(self, key: Hashable) -> None:
        if key in self._under_way:
            self._under_way.remove(key)
            self._selector.unregister(self._conversations[key])

    def _failed(self, key: Hashable, reason: str, observations: dict[Hashable, str | None]) -> None:
        self.end(key)
        where = self.problems[key].where
        words = f"rollout.environment.name = {self._config.name}, {where}: {reason}"
        if self._config.on_error == "stop":
            raise EnvironmentStepError(
                f"{words}; mend it, or set rollout.environment.on_error: end"
            )
        self.failures[key] = words
        observations[key] = None


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
