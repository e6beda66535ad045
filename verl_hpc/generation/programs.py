"""Programs of an engine, which ask the model for turns while it generates."""

from __future__ import annotations

import json
import math
import os
import select
import selectors
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from verl_hpc.agents.endpoint import Endpoint
from verl_hpc.agents.programs import Ended, Program, ProgramJob, start_programs
from verl_hpc.agents.protocol import Replies
from verl_hpc.agents.session import Session, Writer
from verl_hpc.config.program import ProgramConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import ConfigError, EnvironmentStepError, ModelError, SandboxError
from verl_hpc.generation.sessions import program_record
from verl_hpc.rewards.sandbox.containment import MIB, Limits
from verl_hpc.rollout.protocol import Branch, Episode, Feed, FeedAround, Request, Response
from verl_hpc.runtime.control import Control

_WAIT_S = 1.0
"""Longest wait for a program, so that the engine can check whether to stop."""
_TAIL = 400
"""Characters of a program's output in an error."""


class ProgramHost:
    """An engine's endpoint, and what starts its programs.

    Args:
        config: the run's rollout.
        encoder: the run's encoder.

    Raises:
        ConfigError: vLLM has no parser of a name that the configuration gives, or programs cannot
            be started here.
        ModelError: the chat template writes no messages behind a turn of the model, or the model
            reads images.
    """

    def __init__(self, config: RolloutConfig, encoder: Encoder) -> None:
        assert config.program is not None
        directory = config.program.directory
        if directory is not None and not Path(directory).is_dir():
            raise ConfigError(
                f"rollout.program.directory = {directory}: there is no such directory here"
            )
        if encoder.reads_images:
            raise ModelError(
                "rollout.program with a model that reads images: requests have none; choose a "
                "model of texts, or rollout.environment"
            )
        self.config, self._rollout = config.program, config
        self.programs = start_programs()
        self.writer = Writer(encoder)
        tokenizer = encoder.tokenizer
        ends = {tokenizer.eos_token_id, encoder.turn_end, *config.stop_token_ids} - {None}
        parsers = self.config.tool_parser, self.config.reasoning_parser
        self._replies = Replies(tokenizer, ends, *parsers)
        self._try_a_program()

    def _try_a_program(self) -> None:
        """Raises: ConfigError: no program can be started here as the configuration says."""
        setting = f"rollout.program.sandbox = {self.config.sandbox}"
        try:
            program = self.programs.begin(self.job(["true"], "{}", os.devnull, "none"))
            while (ended := program.ended()) is None:
                select.select([program], [], [])
        except SandboxError as error:
            raise ConfigError(f"{setting}: {error}; docs/agents.md says what it needs") from error
        if failure := failure_of(ended):
            raise ConfigError(f"{setting}: a program that does nothing has {failure}")

    def job(self, command: Sequence[str], row: str, address: str, token: str) -> ProgramJob:
        """Return a program to start.

        Args:
            command: its words.
            row: JSON text of its row.
            address: socket of the endpoint.
            token: its key there.
        """
        config = self.config
        directory = str(Path(config.directory).resolve()) if config.directory else None
        where = config.sandbox, config.network, directory, limits_of(config)
        return ProgramJob(command, row, address, token, *where)

    @cached_property
    def endpoint(self) -> Endpoint:
        """The endpoint, which serves from its first use on."""
        longest = self._rollout.max_prompt_tokens + self._rollout.max_response_tokens
        endpoint = Endpoint(self._replies, longest, self.config.max_turns, self._rollout.stop)
        endpoint.start()
        return endpoint


@dataclass(frozen=True)
class _News:
    """What has happened since the engine's last step, equal on all of its ranks."""

    asks: Sequence[tuple[int, tuple[int, ...], int, int, int]] = ()
    """Episode, tokens, most tokens of the turn, repetition, and number of each ask."""
    ended: Mapping[int, Episode] = field(default_factory=dict)


class Programs(FeedAround):
    """A feed that starts a program for each request, and gives the engine what programs ask for.

    The engine's first rank runs the programs and their endpoint, and broadcasts what they ask.

    Args:
        feed: gets the responses of programs that have ended, with their episodes.
        host: endpoint and starter of programs; None on other ranks than the first.
        problems: problem of each request.
        seed: `seed(index, number)` of an ask, whose number follows from its tokens.
        control: control plane of the engine's ranks.
        trains: whether all conversations are rows to train on, or the last one is an answer.
    """

    def __init__(
        self,
        feed: Feed,
        config: ProgramConfig,
        host: ProgramHost | None,
        problems: Sequence[Problem],
        seed: Callable[[int, int], int],
        control: Control,
        trains: bool = True,
    ) -> None:
        super().__init__(feed)
        self._seed, self._control = seed, control
        given = config, problems, self.requests, trains
        self._episodes = _Episodes(host, *given) if host is not None else None
        self._waiting: deque[int] = deque()
        self._most, self._alive = config.max_programs, set[int]()
        self._numbers: dict[int, int] = {}
        """Number of the ask that the engine works on under each index."""
        self._num_asks = 0

    def close(self) -> None:
        """End all programs."""
        if self._episodes is not None:
            self._episodes.end_all()

    @property
    def failures(self) -> Sequence[str]:
        """Programs that failed, on the first rank."""
        return self._episodes.failures if self._episodes is not None else ()

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        self._waiting.extend(index for index, _ in super().next(num_running))
        started: list[tuple[int, Request]] = []
        while self._waiting or self._alive:
            begun = []
            while self._waiting and len(self._alive) < self._most:
                begun.append(self._waiting.popleft())
                self._alive.add(begun[-1])
            news = self._news(begun, wait=not (num_running or started))
            for episode, tokens, most, repetition, number in news.asks:
                seed = self._seed(episode, zlib.crc32(np.array(tokens, np.int64)) + repetition)
                index = len(self.requests) + self._num_asks
                self._num_asks, self._numbers[index] = self._num_asks + 1, number
                started.append((index, Request(tokens, seed, max_tokens=most)))
            for index, episode_of in news.ended.items():
                self._alive.remove(index)
                self._end(index, episode_of)
            if num_running or started or self.stops(asks=True):
                break
        return started

    def ended(self, index: int, response: Response) -> None:
        number = self._numbers.pop(index)
        if self._episodes is not None:
            self._episodes.answer(number, response)

    def _end(self, index: int, episode: Episode) -> None:
        first = episode.branches[0].response
        response = Response(
            first.tokens, first.log_probs, first.finish_reason, first.mask, episode=episode
        )
        super().ended(index, response)

    def _news(self, begun: Sequence[int], wait: bool) -> _News:
        def news() -> _News:
            return self._episodes.news(begun, wait) if self._episodes is not None else _News()

        if self._control.size == 1:
            return news()
        return self._control.broadcast(self._control.together(news))


@dataclass
class _Running:
    """A program that runs."""

    program: Program
    session: Session
    token: str


class _Episodes:
    """The programs of an engine, on its first rank."""

    def __init__(
        self,
        host: ProgramHost,
        config: ProgramConfig,
        problems: Sequence[Problem],
        requests: Sequence[Request],
        trains: bool,
    ) -> None:
        self._config, self._host, self._trains = config, host, trains
        self._problems, self._requests = problems, requests
        self._running: dict[int, _Running] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(host.endpoint, selectors.EVENT_READ, None)
        self.failures: list[str] = []

    def news(self, begun: Sequence[int], wait: bool) -> _News:
        """Start programs, and return what has happened.

        Args:
            begun: indices of the episodes that begin.
            wait: whether to wait for news, at most `_WAIT_S`.

        Raises:
            EnvironmentStepError: a program failed, and on_error is stop.
        """
        for index in begun:
            self._begin(index)
        ended: dict[int, Episode] = {}
        until = time.monotonic() + (_WAIT_S if wait else 0.0)
        while True:
            for key, _ in self._selector.select(max(until - time.monotonic(), 0.0)):
                if key.data is not None:
                    self._look(key.data, ended)
            asks = [
                (ask.episode, ask.tokens, ask.most, ask.repetition, ask.number)
                for ask in self._host.endpoint.asks()
            ]
            if asks or ended or time.monotonic() >= until:
                return _News(asks, ended)

    def answer(self, number: int, response: Response) -> None:
        """Give a program the turn that it has asked for; none if the call ended before it."""
        whole = response.finish_reason != "unfinished"
        self._host.endpoint.answer(number, response if whole else None)

    def end_all(self) -> None:
        """End all programs."""
        for index in [*self._running]:
            self._forget(index).program.end()
        self._selector.close()

    def _begin(self, index: int) -> None:
        session, endpoint = Session(self._host.writer), self._host.endpoint
        token = endpoint.open(index, session)
        row = row_of(self._problems[index])
        job = self._host.job(self._config.command, row, endpoint.address, token)
        program = self._host.programs.begin(job)
        self._running[index] = _Running(program, session, token)
        self._selector.register(program, selectors.EVENT_READ, index)

    def _forget(self, index: int) -> _Running:
        running = self._running.pop(index)
        self._selector.unregister(running.program)
        self._host.endpoint.close(running.token)
        return running

    def _look(self, index: int, ended: dict[int, Episode]) -> None:
        result = self._running[index].program.ended()
        if result is None:
            return
        session = self._forget(index).session
        try:
            score, turns = score_of(result)
            failure = failure_of(result)
        except ValueError as error:
            score, turns, failure = None, {}, str(error)
        if failure:
            words = f"rollout.program.command = {self._config.command}, "
            words += f"{self._problems[index].where}: {failure}"
            if self._config.on_error == "stop":
                raise EnvironmentStepError(
                    f"{words}; mend it, or set rollout.program.on_error: end"
                )
            self.failures.append(words)
            score = score or 0.0
        # A program without a turn has a row all the same, of which nothing is learned.
        nothing = Branch(tuple(self._requests[index].prompt), _NO_TURN, {})
        rows = session.branches(turns) if self._trains else session.answer(turns)
        leaves = session.leaves if self._trains else session.turns[-1:]
        told = self._problems[index].data_source, session.turns, leaves, result, failure
        ended[index] = Episode(rows or (nothing,), score, program_record(*told))


_NO_TURN = Response((0,), (0.0,), "stop", (0,))


def row_of(problem: Problem) -> str:
    """Return the JSON text in which a program finds its row."""
    return json.dumps(
        {
            "index": problem.index,
            "prompt": problem.prompt,
            "data_source": problem.data_source,
            "ground_truth": problem.ground_truth,
            "extra_info": problem.extra,
        },
        default=str,
    )


def limits_of(config: ProgramConfig) -> Limits:
    """Return the limits of a program."""
    return Limits(
        timeout_s=config.timeout_s,
        cpu_s=config.timeout_s,
        memory_bytes=int(config.memory_gib * 1024 * MIB),
        tasks=config.max_processes,
        files_bytes=config.files_mib * MIB,
        output_bytes=MIB,
    )


def failure_of(result: Ended) -> str:
    """Return why a program failed, or nothing."""
    if result.ending == "exited" and result.status == 0 and not result.message:
        return ""
    detail = f"({result.message})" if result.message else f"with status {result.status}"
    said = result.output[-_TAIL:].strip() or "no output"
    return f"{result.ending.replace('_', ' ')} {detail}: {said}"


def score_of(result: Ended) -> tuple[float | None, dict[int, float]]:
    """Return the score that a program wrote, and the rewards of its turns by their number.

    Raises:
        ValueError: the score is neither a number nor an object with one.
    """
    if result.score is None or not result.score.strip():
        return None, {}
    try:
        written = json.loads(result.score)
    except ValueError:
        written = None
    turns = written.get("turns", []) if isinstance(written, dict) else []
    score = written.get("score") if isinstance(written, dict) else written
    if isinstance(turns, list) and score is None and turns:
        score = math.fsum(t for t in turns if _is_number(t))
    if not _is_number(score) or not isinstance(turns, list) or not all(map(_is_number, turns)):
        raise ValueError(
            f"it wrote {result.score[:_TAIL]!r} into the file of VERL_HPC_SCORE; expected a "
            'number, or {"score": a number, "turns": [a number for each turn]}'
        )
    assert score is not None
    return float(score), {number: float(reward) for number, reward in enumerate(turns)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
