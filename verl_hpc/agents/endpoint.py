"""A model endpoint in this process: OpenAI's chat completions, completions and models, and
Anthropic's messages, on a unix socket.

An HTTP server in a thread turns requests into asks for tokens. The main thread takes the asks, runs
the engine, and answers them. Nothing listens on a port, and the socket goes with the endpoint.
"""

from __future__ import annotations

import asyncio
import json
import queue
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import (
    AsyncIterable,
    Callable,
    Container,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from verl_hpc.agents import protocol
from verl_hpc.agents.protocol import MODEL, RefusedError, Replies, Wanted
from verl_hpc.agents.session import Session
from verl_hpc.data.messages import Message
from verl_hpc.errors import ClusterError, DataError, ModelError
from verl_hpc.rollout.protocol import Response

T = TypeVar("T", str, Message)
_IDLE_S = 7 * 24 * 3600
"""Seconds that a connection may be idle, longer than any program runs: a request that is sent as
the connection closes would be lost."""

LARGEST_REQUEST = 64 * 2**20
"""Most bytes of a request."""


@dataclass(frozen=True)
class Ask:
    """A turn of the model that a program waits for."""

    number: int
    episode: Hashable
    """Names the program's episode."""
    tokens: tuple[int, ...]
    """Token ids that the model continues."""
    repetition: int
    """Number of earlier asks of the episode with the same tokens."""
    most: int
    """Most tokens of the turn."""


@dataclass
class _Client:
    """A program that may speak to the model."""

    episode: Hashable
    session: Session
    waiting: set[int] = field(default_factory=set)
    """Numbers of its asks that have no answer yet."""


class Endpoint:
    """Serves programs, each by a token of its own.

    Args:
        replies: writes what the model samples as replies.
        longest: most tokens of a conversation, prompt included.
        most_turns: most turns of a program.
        stop: texts that end a turn.
        directory: where its socket is made, whose path is short; None makes one.
    """

    def __init__(
        self,
        replies: Replies,
        longest: int,
        most_turns: int,
        stop: Sequence[str] = (),
        directory: str | None = None,
    ) -> None:
        self._replies, self._longest = replies, longest
        self._most_turns, self._stop = most_turns, stop
        self._clients: dict[str, _Client] = {}
        self._futures: dict[int, asyncio.Future[Response]] = {}
        self._asks: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        self._known: list[Ask] = []
        """Asks that nobody has taken yet."""
        self._num_asks = 0
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        self._directory = tempfile.TemporaryDirectory(prefix="model_", dir=directory)
        self.address = str(Path(self._directory.name) / "model.sock")
        settings: Any = {"timeout_keep_alive": _IDLE_S}
        settings |= {"log_config": None, "access_log": False, "ws": "none", "lifespan": "off"}
        self._server = uvicorn.Server(uvicorn.Config(self._app(), uds=self.address, **settings))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="verl_hpc-endpoint", daemon=True)

    def start(self) -> None:
        """Serve from now on.

        Raises:
            ClusterError: the socket cannot be made.
        """
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise ClusterError(
                    f"rollout.environment: the model's endpoint cannot listen at {self.address}; "
                    "set TMPDIR to a directory of this node whose path is short"
                )
            self._thread.join(0.01)

    def _run(self) -> None:
        with suppress(SystemExit):  # how uvicorn ends where it cannot listen
            self._loop.run_until_complete(self._server.serve())

    def stop(self) -> None:
        """End the server; programs that wait for a turn are refused."""
        for token in [*self._clients]:
            self.close(token)
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=5)
        self._wakes.close()
        self._woken.close()
        self._directory.cleanup()

    def fileno(self) -> int:
        """Readable when `asks` has something to return."""
        return self._woken.fileno()

    def open(self, episode: Hashable, session: Session) -> str:
        """Let a program in; return its token."""
        token = secrets.token_urlsafe(24)
        self._clients[token] = _Client(episode, session)
        return token

    def close(self, token: str) -> None:
        """Let a program in no more; what it waits for is refused."""
        for number in [*self._clients.pop(token).waiting]:
            self.answer(number, None)

    def asks(self, episodes: Container[Hashable] | None = None) -> list[Ask]:
        """Return the asks that have come since the last call, without those that were refused.

        Args:
            episodes: those whose asks to return, by default all; the others' stay.
        """
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        while not self._asks.empty():
            self._known.append(self._asks.get())
        known = [ask for ask in self._known if ask.number in self._futures]
        taken = [ask for ask in known if episodes is None or ask.episode in episodes]
        self._known = [ask for ask in known if ask not in taken]
        return taken

    def wake(self) -> None:
        """Have whoever waits for asks look for them."""
        with suppress(BlockingIOError):  # it is awake already
            self._wakes.send(b".")

    def answer(self, number: int, response: Response | None) -> None:
        """Give the program that waits for an ask its turn; None refuses it."""

        def resolve() -> None:
            future = self._futures.get(number)
            if future is None or future.done():
                return
            if response is None:
                future.set_exception(RefusedError(409, "the episode has ended"))
            else:
                future.set_result(response)

        self._loop.call_soon_threadsafe(resolve)

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        serve = app.post

        @app.get("/v1/models")
        async def models(http: HttpRequest) -> Any:
            self._client(http)
            card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "verl_hpc"}
            return {"object": "list", "data": [card]}

        @serve("/v1/chat/completions")
        async def chat(http: HttpRequest) -> Any:
            wanted, message, response, num_prompt = await self._message(http, protocol.chat_of)
            reply = protocol.chat_reply(message, response, num_prompt)
            options = wanted.request.stream_options
            with_usage = options is not None and bool(options.include_usage)
            return _sent(wanted, reply, protocol.chat_events(reply, with_usage))

        @serve("/v1/messages")
        async def messages(http: HttpRequest) -> Any:
            read = protocol.chat_of_anthropic
            wanted, message, response, num_prompt = await self._message(http, read)
            reply = protocol.chat_reply(message, response, num_prompt)
            events = protocol.anthropic_events(reply)
            return _sent(wanted, protocol.anthropic_reply(reply), events)

        @serve("/v1/completions")
        async def text(http: HttpRequest) -> Any:
            wanted, client = await self._read(http, protocol.text_of)

            def as_text(response: Response) -> str:
                return self._replies.text(response)

            said, response, num_prompt = await self._turn(client, wanted, as_text)
            reply = protocol.text_reply(said, response, num_prompt)
            return _sent(wanted, reply, protocol.text_events(reply))

        @app.exception_handler(RefusedError)
        async def refused(_: HttpRequest, error: RefusedError) -> JSONResponse:
            words: dict[str, Any] = {"message": str(error), "type": "invalid_request_error"}
            words |= {"param": error.parameter, "code": error.code}
            return JSONResponse({"type": "error", "error": words}, error.status)

        return app

    async def _message(
        self, http: HttpRequest, read: Callable[[Mapping[str, Any], Sequence[str]], Wanted]
    ) -> tuple[Wanted, Message, Response, int]:
        """Answer a chat request with a message of the assistant."""
        wanted, client = await self._read(http, read)

        def as_message(response: Response) -> Message:
            return self._replies.message(response, wanted.request)

        return wanted, *await self._turn(client, wanted, as_message)

    async def _read(
        self, http: HttpRequest, read: Callable[[Mapping[str, Any], Sequence[str]], Wanted]
    ) -> tuple[Wanted, _Client]:
        """Return what a program wants.

        Raises:
            RefusedError: it has no token, or asks for what is not there.
        """
        client, content = self._client(http), bytearray()
        async for part in http.stream():
            content += part
            if len(content) > LARGEST_REQUEST:
                raise RefusedError(413, f"a request has more than {LARGEST_REQUEST:,} bytes")
        try:
            body = json.loads(content)
            if not isinstance(body, dict):
                raise RefusedError(400, "a request is a JSON object")
            return read(body, self._stop), client
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RefusedError(400, f"{where}: {first['msg']}", where) from error
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise RefusedError(400, f"the request is malformed: {error!r:.300}") from error

    def _client(self, http: HttpRequest) -> _Client:
        words = http.headers.get("authorization", "").split() or [""]
        token = http.headers.get("x-api-key") or words[-1]
        if token not in self._clients:
            raise RefusedError(401, "no program that runs has this key; use OPENAI_API_KEY")
        return self._clients[token]

    async def _turn(
        self, client: _Client, wanted: Wanted, written: Callable[[Response], T]
    ) -> tuple[T, Response, int]:
        """Have the model take a turn, and record it.

        Args:
            written: writes the turn as the program gets it.

        Returns:
            The turn as written, its tokens, and the number of tokens before them.

        Raises:
            RefusedError: the program has no turn left, no room for one, or has ended.
        """
        session = client.session
        if session.num_begun >= self._most_turns:
            raise RefusedError(
                400, f"max_turns = {self._most_turns} turns were taken", code="max_turns"
            )
        try:
            parent, tokens = session.begin(wanted.said, wanted.arguments)
        except (DataError, ModelError) as error:
            raise RefusedError(400, str(error), "messages") from error
        room = self._longest - len(tokens)
        if room < 1:
            raise RefusedError(
                400,
                f"the conversation has {len(tokens)} tokens, and at most {self._longest} fit with "
                "a turn of the model",
                code="context_length_exceeded",
            )
        most = min(room, wanted.most or room)
        number, self._num_asks = self._num_asks, self._num_asks + 1
        repetition = session.repetition(tokens)
        begun = time.time()
        self._futures[number] = future = self._loop.create_future()
        client.waiting.add(number)
        self._asks.put(Ask(number, client.episode, tokens, repetition, most))
        self.wake()
        try:
            response = await future
        finally:
            del self._futures[number]
            client.waiting.remove(number)
        reply = written(response)
        session.end(parent, tokens, wanted.said, response, reply, begun)
        return reply, response, len(tokens)


def _sent(wanted: Wanted, reply: Any, events: Iterable[str] | AsyncIterable[str]) -> Any:
    """Send a reply whole, or as the events of a stream."""
    if wanted.request.stream:
        return StreamingResponse(events, media_type="text/event-stream")
    return JSONResponse(reply.model_dump(mode="json", exclude_none=True))
