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
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from verl_hpc.agents.endpoint import Endpoint
from verl_hpc.agents.programs import Ended, Program, ProgramJob, Scorer, start_programs
from verl_hpc.agents.protocol import Replies
from verl_hpc.agents.session import Session, Writer
from verl_hpc.config.program import ProgramConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import ConfigError, EnvironmentStepError, ModelError, SandboxError
from verl_hpc.generation.sessions import program_record
from verl_hpc.rewards.sandbox.containment import MIB, Limits
from verl_hpc.rollout.partial import versioned
from verl_hpc.rollout.protocol import (
    NOT_BEGUN,
    Branch,
    Episode,
    Feed,
    FeedAround,
    Request,
    Response,
)
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
        _check_paths(config.program)
        if encoder.reads_images:
            raise ModelError(
                "rollout.program with a model that reads images: requests have none; choose a "
                "model of texts, or rollout.environment"
            )
        self.config, self._rollout = config.program, config
        self.programs = start_programs(self.config.image)
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
            job = replace(self.job(["true"], "{}", os.devnull, "none"), scorer=None)
            program = self.programs.begin(job)
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
        config, scorer = self.config, None
        if config.score is not None:
            hidden = config.score.directory and str(Path(config.score.directory).absolute())
            scorer = Scorer(config.score.command, row, hidden)
            row = json.dumps(json.loads(row) | {"ground_truth": None})
        directory = str(Path(config.directory).absolute()) if config.directory else None
        paths = [str(Path(path).absolute()) for path in config.paths]
        image = str(Path(config.image).absolute()) if config.image else None
        where = config.sandbox, config.network, directory, paths, limits_of(config)
        return ProgramJob(command, row, address, token, *where, image, scorer)

    @cached_property
    def endpoint(self) -> Endpoint:
        """The endpoint, which serves from its first use on."""
        longest = self._rollout.max_prompt_tokens + self._rollout.max_response_tokens
        where = self._rollout.stop, self.programs.directory
        endpoint = Endpoint(self._replies, longest, self.config.max_turns, *where)
        endpoint.start()
        return endpoint


@dataclass(frozen=True)
class _News:
    """What has happened since the engine's last step, equal on all of its ranks."""

    asks: Sequence[tuple[Hashable, tuple[int, ...], int, int, int]] = ()
    """Program, tokens, most tokens of the turn, repetition, and number of each ask."""
    ended: Mapping[Hashable, Episode] = field(default_factory=dict)


@dataclass(frozen=True)
class _Asked:
    """A turn that a program waits for."""

    key: Hashable
    tokens: tuple[int, ...]
    most: int
    repetition: int
    begun: Response = NOT_BEGUN
    """What there is of the turn."""


class LivePrograms:
    """Programs under way, and what they wait for; equal on all ranks of an engine, but for the
    programs themselves, which its first rank has."""

    def __init__(self) -> None:
        self.episodes: _Episodes | None = None
        self.keys: set[Hashable] = set()
        self.asks: dict[int, _Asked] = {}
        """Turns that are not finished, by the number of the ask."""

    def end(self, keys: Collection[Hashable]) -> None:
        """End some programs, if they are under way."""
        for key in self.keys.intersection(keys):
            if self.episodes is not None:
                self.episodes.end(key)
            self.forget(key)

    def end_all(self) -> None:
        """End all programs."""
        self.end(self.keys.copy())
        if self.episodes is not None:
            self.episodes.close()
            self.episodes = None

    def forget(self, key: Hashable) -> None:
        """Drop what is known of a program that has ended."""
        self.keys.remove(key)
        self.asks = {number: ask for number, ask in self.asks.items() if ask.key != key}


class Programs(FeedAround):
    """A feed that starts a program for each request, and gives the engine what programs ask for.

    The engine's first rank runs the programs and their endpoint, and broadcasts what they ask. When
    the call ends before a program does, what there is of its turns is kept in `live`, and the call
    that asks for its response the next time goes on with them; meanwhile the program waits.

    Args:
        feed: gets the responses of programs that have ended, with their episodes.
        host: endpoint and starter of programs; None on other ranks than the first.
        problems: problem of each request.
        seed: `seed(index, number)` of an ask, whose number follows from its tokens.
        control: control plane of the engine's ranks.
        trains: whether all conversations are rows to train on, or the last one is an answer.
        keys: names of the requests' programs, the same in all calls; by default their indices.
        version: of the engine's weights.
        live: programs that earlier calls have left, and that this one leaves; without it all end
            with the call.
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
        *,
        keys: Sequence[Hashable] | None = None,
        version: int = 0,
        live: LivePrograms | None = None,
    ) -> None:
        super().__init__(feed)
        self._seed, self._control, self._problems = seed, control, problems
        self._most, self._version = config.max_programs * config.max_rows, version
        self._keys = range(len(problems)) if keys is None else keys
        self._index = {key: index for index, key in enumerate(self._keys)}
        self._stays, self._live = live is not None, live or LivePrograms()
        self.failures: list[str] = []
        """Programs that failed in this call, on the first rank."""
        if host is not None:
            self._live.episodes = self._live.episodes or _Episodes(host, config, trains)
            self._live.episodes.failures = self.failures
        self._waiting: deque[int] = deque()
        self._alive = {self._index[key] for key in self._live.keys if key in self._index}
        asks = self._live.asks
        self._left = [number for number in asks if asks[number].key in self._index]
        """Numbers of the asks of earlier calls that the engine has yet to go on with."""
        self._numbers: dict[int, int] = {}
        """Number of the ask that the engine works on under each index."""
        self._num_asks = 0

    def close(self) -> None:
        """End all programs, unless they outlive the call."""
        if not self._stays:
            self._live.end_all()

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        started = [self._start(number) for number in self._left]
        self._left = []
        while self._takes_more() or self._alive:
            begun = []
            while self._waiting and len(self._live.keys) < self._most:
                begun.append(self._waiting.popleft())
                self._alive.add(begun[-1])
                self._live.keys.add(self._keys[begun[-1]])
            news = self._news(begun, wait=not (num_running or started))
            for key, tokens, most, repetition, number in news.asks:
                self._live.asks[number] = _Asked(key, tokens, most, repetition)
                started.append(self._start(number))
            for key, episode in news.ended.items():
                self._end(key, episode)
            if num_running or started or self.stops(asks=True):
                break
        return started

    def ended(self, index: int, response: Response) -> None:
        number = self._numbers.pop(index)
        asked = self._live.asks.get(number)
        if asked is None:  # its program has ended
            return
        turn = versioned(response, asked.begun, self._version)
        if not turn.is_finished:
            self._live.asks[number] = replace(asked, begun=turn)
            return
        del self._live.asks[number]
        if self._live.episodes is not None:
            self._live.episodes.answer(number, turn)

    def _takes_more(self) -> bool:
        """Take the requests whose programs may start; return whether any waits."""
        under_way = len(self._waiting) + len(self._alive)
        new = [index for index, _ in super().next(under_way) if index not in self._alive]
        self._waiting.extend(new)
        return bool(self._waiting)

    def _start(self, number: int) -> tuple[int, Request]:
        """Return the request of a turn, with the index by which the engine knows it."""
        asked = self._live.asks[number]
        read = np.array((*asked.tokens, *asked.begun.tokens), np.int64)
        seed = self._seed(self._index[asked.key], zlib.crc32(read) + asked.repetition)
        index = len(self.requests) + self._num_asks
        self._num_asks, self._numbers[index] = self._num_asks + 1, number
        return index, Request(asked.tokens, seed, asked.begun, max_tokens=asked.most)

    def _end(self, key: Hashable, episode: Episode) -> None:
        self._live.forget(key)
        self._alive.remove(self._index[key])
        index = self._index[key]
        if not episode.branches:
            # A program without a turn has a row all the same, of which nothing is learned.
            no_turn = versioned(_NO_TURN, NOT_BEGUN, self._version)
            nothing = Branch(tuple(self.requests[index].prompt), no_turn, {})
            episode = replace(episode, branches=(nothing,))
        super().ended(index, replace(episode.branches[0].response, episode=episode))

    def _news(self, indices: Sequence[int], wait: bool) -> _News:
        begun = {self._keys[i]: self._problems[i] for i in indices}
        episodes = self._live.episodes

        def news() -> _News:
            return episodes.news(begun, wait) if episodes is not None else _News()

        if self._control.size == 1:
            return news()
        return self._control.broadcast(self._control.together(news))


@dataclass
class _Row:
    """A row that a program works on."""

    session: Session
    token: str
    problem: Problem


@dataclass
class _Running:
    """A program that runs, with its rows by their keys."""

    program: Program
    rows: Mapping[Hashable, _Row]


class _Episodes:
    """The programs of an engine, on its first rank."""

    def __init__(self, host: ProgramHost, config: ProgramConfig, trains: bool) -> None:
        self._config, self._host, self._trains = config, host, trains
        self._running: dict[Hashable, _Running] = {}
        """The program of each row that one works on."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(host.endpoint, selectors.EVENT_READ, None)
        self.failures: list[str] = []

    def news(self, begun: Mapping[Hashable, Problem], wait: bool) -> _News:
        """Start programs, and return what has happened.

        Args:
            begun: problems of the programs that begin, by their keys.
            wait: whether to wait for news, at most `_WAIT_S`.

        Raises:
            EnvironmentStepError: a program failed, and on_error is stop.
        """
        keys = list(begun)
        for first in range(0, len(keys), self._config.max_rows):
            together = keys[first : first + self._config.max_rows]
            self._begin({key: begun[key] for key in together})
        ended: dict[Hashable, Episode] = {}
        until = time.monotonic() + (_WAIT_S if wait else 0.0)
        while True:
            for ready, _ in self._selector.select(max(until - time.monotonic(), 0.0)):
                if ready.data is not None:
                    self._look(ready.data, ended)
            asks = [
                (ask.episode, ask.tokens, ask.most, ask.repetition, ask.number)
                for ask in self._host.endpoint.asks(self._running)
            ]
            if asks or ended or time.monotonic() >= until:
                return _News(asks, ended)

    def answer(self, number: int, response: Response) -> None:
        """Give a program the turn that it has asked for."""
        self._host.endpoint.answer(number, response)

    def end(self, key: Hashable) -> None:
        """End the program of a row, if it has not ended by itself: one whose failure ends the call
        has."""
        if key in self._running:
            running = self._running[key]
            self._forget(running)
            running.program.end()

    def close(self) -> None:
        """Look for no more news."""
        self._selector.close()
        # Programs that outlive calls may have asked meanwhile.
        self._host.endpoint.wake()

    def _begin(self, problems: Mapping[Hashable, Problem]) -> None:
        endpoint, rows = self._host.endpoint, dict[Hashable, _Row]()
        for key, problem in problems.items():
            session = Session(self._host.writer)
            rows[key] = _Row(session, endpoint.open(key, session), problem)
        if self._config.max_rows > 1:
            told: Any = [row_of(row.problem) | {"key": row.token} for row in rows.values()]
            token = ""
        else:
            (row,) = rows.values()
            told, token = row_of(row.problem), row.token
        text = json.dumps(told, default=str)
        job = self._host.job(self._config.command, text, endpoint.address, token)
        running = _Running(self._host.programs.begin(job), rows)
        self._running |= dict.fromkeys(rows, running)
        self._selector.register(running.program, selectors.EVENT_READ, running)

    def _forget(self, running: _Running) -> None:
        self._selector.unregister(running.program)
        for key, row in running.rows.items():
            del self._running[key]
            self._host.endpoint.close(row.token)

    def _look(self, running: _Running, ended: dict[Hashable, Episode]) -> None:
        result = running.program.ended()
        if result is None:
            return
        self._forget(running)
        try:
            scores = scores_of(result, len(running.rows), listed=self._config.max_rows > 1)
            failure = failure_of(result)
        except ValueError as error:
            scores, failure = [_NO_SCORE] * len(running.rows), str(error)
        if failure:
            (row, *_) = running.rows.values()
            words = f"rollout.program.command = {self._config.command}, "
            words += f"{row.problem.where}: {failure}"
            if self._config.on_error == "stop":
                raise EnvironmentStepError(
                    f"{words}; mend it, or set rollout.program.on_error: end"
                )
            self.failures.append(words)
        for (key, row), (score, turns) in zip(running.rows.items(), scores, strict=True):
            session = row.session
            rows = session.branches(turns) if self._trains else session.answer(turns)
            leaves = session.leaves if self._trains else session.turns[-1:]
            told = row.problem.data_source, session.turns, leaves, result, failure
            scored = (score or 0.0) if failure else score
            ended[key] = Episode(rows, scored, program_record(*told))


_NO_TURN = Response((0,), (0.0,), "stop", (0,))
Scored = tuple[float | None, dict[int, float]]
"""The score that was written for a row, if there is one, and rewards of turns by their numbers."""
_NO_SCORE: Scored = (None, {})


def row_of(problem: Problem) -> dict[str, Any]:
    """Return what a program is told of a row."""
    return {
        "index": problem.index,
        "prompt": problem.prompt,
        "data_source": problem.data_source,
        "ground_truth": problem.ground_truth,
        "extra_info": problem.extra,
    }


def _check_paths(config: ProgramConfig) -> None:
    """Raises: ConfigError: a directory is not there, or the image."""
    given = [("directory", config.directory), *(("paths", path) for path in config.paths)]
    given += [("score.directory", config.score.directory)] if config.score is not None else []
    for setting, path in given:
        if path is not None and not Path(path).is_dir():
            raise ConfigError(
                f"rollout.program.{setting} = {path}: there is no such directory here"
            )
    if config.image is not None and not Path(config.image).exists():
        raise ConfigError(f"rollout.program.image = {config.image}: there is nothing here")


def limits_of(config: ProgramConfig) -> Limits:
    """Return the limits of a program."""
    return Limits(
        timeout_s=config.timeout_s,
        cpu_s=config.timeout_s * (config.cpus or 1),
        memory_bytes=int(config.memory_gib * 1024 * MIB),
        tasks=config.max_processes,
        files_bytes=config.files_mib * MIB,
        output_bytes=MIB,
        cpus=config.cpus,
    )


def failure_of(result: Ended) -> str:
    """Return why a program failed, or nothing."""
    if result.ending == "exited" and result.status == 0 and not result.message:
        return ""
    detail = f"({result.message})" if result.message else f"with status {result.status}"
    said = result.output[-_TAIL:].strip() or "no output"
    return f"{result.ending.replace('_', ' ')} {detail}: {said}"


def scores_of(result: Ended, num_rows: int, listed: bool = False) -> Sequence[Scored]:
    """Return what a program wrote for each of its rows.

    Args:
        listed: whether it writes a list of scores, or the score of its only row.

    Raises:
        ValueError: it wrote something else.
    """
    text = (result.score or "").strip()
    try:
        written = json.loads(text or "null")
    except ValueError:
        written = text
    if not listed or written is None:
        written = [written] * num_rows
    if isinstance(written, list) and len(written) == num_rows:
        with suppress(ValueError):
            return [*map(_score_of, written)]
    expected = 'a number, or {"score": a number, "turns": [a number for each turn]}'
    raise ValueError(
        f"it wrote {text[:_TAIL]!r} into the file of VERL_HPC_SCORE; expected {expected}"
        + f", or null, in a list for its {num_rows} rows" * listed
    )


def _score_of(written: Any) -> Scored:
    """Return what was written for a row.

    Raises:
        ValueError: it is neither a number, an object with one, nor null.
    """
    if written is None:
        return _NO_SCORE
    turns = written.get("turns", []) if isinstance(written, dict) else []
    score = written.get("score") if isinstance(written, dict) else written
    if isinstance(turns, list) and score is None and turns:
        score = math.fsum(t for t in turns if _is_number(t))
    if not _is_number(score) or not isinstance(turns, list) or not all(map(_is_number, turns)):
        raise ValueError
    assert score is not None
    return float(score), {number: float(reward) for number, reward in enumerate(turns)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
