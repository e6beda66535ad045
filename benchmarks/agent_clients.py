"""Programs that are tasks of one process, so that thousands of them cost no start of their own.

`TaskPrograms` takes the place of the helper that starts programs; what they ask goes through the
endpoint as ever. A program's command is the name of one of `PROGRAMS` and its options as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from secrets import token_hex
from typing import Any
from weakref import WeakSet

import aiohttp

from benchmarks.launch import REPOSITORY
from verl_hpc.agents.held import hold
from verl_hpc.agents.programs import Ended, Programs
from verl_hpc.runtime import helper_process
from verl_hpc.runtime.messages import receive, send

Message = dict[str, Any]
ADD = {
    "name": "add",
    "description": "adds two numbers",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}


class TaskPrograms(Programs):
    """Starts programs as tasks of a process that is started here."""

    def __init__(self) -> None:
        self._held = hold(token_hex(6))
        self.directory = str(self._held.path)
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._helper = helper_process.start(
            "benchmarks.agent_clients", variables, str(REPOSITORY), prints=True
        )
        self._under_way = WeakSet()


class RefusedError(Exception):
    """The endpoint refused a request."""


class Model:
    """The endpoint, as one program sees it."""

    def __init__(self, http: aiohttp.ClientSession, key: str) -> None:
        self._http, self._headers = http, {"Authorization": f"Bearer {key}"}

    async def ask(self, path: str, body: Message) -> Message:
        """Send a request; return the reply, a stream's parts as one."""
        async with self._http.post(
            f"http://model/v1/{path}", json={"model": "policy", **body}, headers=self._headers
        ) as reply:
            if reply.status != 200:
                raise RefusedError(f"{reply.status}: {(await reply.text())[:300]}")
            if not body.get("stream"):
                return dict(await reply.json())
            lines = (await reply.text()).splitlines()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        return {"choices": [{"message": joined([json.loads(event) for event in events])}]}


def joined(events: Sequence[Message]) -> Message:
    """The message that a stream of chat completions consists of."""
    message: Message = {"content": None}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            message |= {k: v for k, v in delta.items() if k != "tool_calls" and v is not None}
            message.setdefault("tool_calls", []).extend(delta.get("tool_calls") or ())
    return message


async def chat(model: Model, row: Message, options: Mapping[str, Any]) -> float:
    """A conversation in which each turn is answered by the same words."""
    messages = [{"role": "user", "content": row["prompt"]}]
    for _ in range(options["turns"]):
        body = {"messages": messages, "max_tokens": options["max_tokens"]}
        reply = await model.ask("chat/completions", body)
        message = reply["choices"][0]["message"]
        messages += [message, {"role": "user", "content": options["says"]}]
    return 0.0


_REFUSALS = ("context_length_exceeded", "max_turns", "chat template failed")


class Speaker:
    """A program that goes on, goes back, changes what was said, and asks in parallel, at random.

    Args:
        model: the endpoint.
        row: the program's row, whose index is part of what it says first.
        options: seed, rounds, and whether the chat template writes a system message, and tools.
    """

    def __init__(self, model: Model, row: Message, options: Mapping[str, Any]) -> None:
        self._model, self._options, self._index = model, options, row["index"]
        self._draw = random.Random(f"{options['seed']}/{row['index']}")
        self._asks_as = self._draw.choice((self._text, self._anthropic, self._chat, self._chat))
        self._tools = options["tools"] and self._draw.random() < 0.4
        self._num_refused = 0.0
        self._system = "" if not options["system"] else self._draw.choice(("", "Be brief."))

    async def run(self) -> float:
        """Speak to the end; return the number of requests that were refused."""
        draw, pasts = self._draw, list[list[Message]]([[]])
        for _ in range(draw.randint(2, self._options["rounds"])):
            count = draw.choice((1, 1, 1, 2, 3))
            given = [self._past(pasts) for _ in range(count)]
            replies = await asyncio.gather(*map(self._asked, given))
            pasts += [past for past in replies if past]
        return self._num_refused

    def _past(self, pasts: Sequence[list[Message]]) -> list[Message]:
        """What was said before, which the program may change, and what it says now."""
        draw = self._draw
        past = [*(pasts[-1] if draw.random() < 0.7 else draw.choice(pasts))]
        change = draw.random()
        if past and change < 0.1:
            at = draw.choice([i for i, said in enumerate(past) if said["role"] == "user"])
            past[at] = past[at] | {"content": f"{self._index} changed {draw.randrange(3)}"}
        elif change < 0.2:
            past = [*map(without_thoughts, past)]
        elif len(past) > 4 and change < 0.3:
            past = [past[0], *past[3:]] if past[3]["role"] == "assistant" else past[:2]
        calls = (past[-1].get("tool_calls") if past else None) or ()
        past += [{"role": "tool", "content": "7", "tool_call_id": call["id"]} for call in calls]
        if not calls or draw.random() < 0.2:
            words = draw.choice(("hi", "more?", "né 漢", " so\n", "<|im_end|>", "</think> x"))
            past.append({"role": "user", "content": f"{self._index} {words}"})
        return past

    async def _asked(self, past: list[Message]) -> list[Message] | None:
        """The past with the model's turn; None if it is too long, or the template refuses it."""
        try:
            return [*past, await self._asks_as(past, self._draw.randint(2, 8))]
        except RefusedError as error:
            if not any(reason in str(error) for reason in _REFUSALS):
                raise
            self._num_refused += 1
            return None

    async def _chat(self, past: list[Message], most: int) -> Message:
        body: Message = {"messages": past, "max_tokens": most, "stream": self._draw.random() < 0.3}
        if self._system:
            body["messages"] = [{"role": "system", "content": self._system}, *past]
        if self._tools:
            body["tools"] = [{"type": "function", "function": ADD}]
        reply = await self._model.ask("chat/completions", body)
        return dict(reply["choices"][0]["message"])

    async def _text(self, past: list[Message], most: int) -> Message:
        """Ask for the continuation of a text, in which messages follow each other."""
        text = "".join(message.get("content") or "" for message in past)
        reply = await self._model.ask("completions", {"prompt": text, "max_tokens": most})
        return {"role": "assistant", "content": reply["choices"][0]["text"]}

    async def _anthropic(self, past: list[Message], most: int) -> Message:
        body: Message = {"messages": [*map(in_blocks, past)], "max_tokens": most}
        if self._system:
            body["system"] = self._system
        if self._tools:
            body["tools"] = [
                {("input_schema" if k == "parameters" else k): v for k, v in ADD.items()}
            ]
        reply = await self._model.ask("messages", body)
        blocks = reply["content"]
        said = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [
            {"id": block["id"], "type": "function",
             "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
            for block in blocks if block["type"] == "tool_use"
        ]  # fmt: skip
        return {"role": "assistant", "content": said, "tool_calls": calls}


def in_blocks(message: Message) -> Message:
    """A message as Anthropic's clients send it."""
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return {"role": "user", "content": [result | {"content": message["content"]}]}
    blocks = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    blocks += [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
         "input": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls") or ()
    ]  # fmt: skip
    return {"role": message["role"], "content": blocks or ""}


def without_thoughts(message: Message) -> Message:
    """A message of the model as clients send it that drop its thoughts."""
    if message["role"] != "assistant":
        return message
    kept = {k: v for k, v in message.items() if not k.startswith("reasoning")}
    return kept | {"content": (message.get("content") or "").rpartition("</think>")[2]}


async def speak(model: Model, row: Message, options: Mapping[str, Any]) -> float:
    """Run a `Speaker`."""
    return await Speaker(model, row, options).run()


async def nothing(*_: Any) -> float:
    """Do nothing, as the program does that tries whether programs can be started."""
    return 0.0


PROGRAMS = {"true": nothing, "chat": chat, "speak": speak}


async def run(patron: socket.socket, connections: dict[str, aiohttp.ClientSession]) -> None:
    """Run the program that a patron asks for, and tell it how that ended."""
    job = receive(patron)
    address = job["socket"]
    if address not in connections:
        connector = aiohttp.UnixConnector(address, limit=0)
        connections[address] = aiohttp.ClientSession(connector=connector)
    name, *options = job["command"]
    status, output, score = 0, "", 0.0
    try:
        model = Model(connections[address], job["token"])
        score = await PROGRAMS[name](model, json.loads(job["row"]), json.loads(*options or ["{}"]))
    except Exception as error:
        status, output = 1, repr(error)
    ended = Ended("exited", status, output, str(score), 0.0, "")
    with patron, suppress(BrokenPipeError):  # the run has failed meanwhile
        send(patron, {"result": asdict(ended), "failure": ""})


async def serve(patrons: socket.socket) -> None:
    """Run all programs that are asked for until nobody is left who asks."""
    ends, connections = asyncio.Event(), dict[str, aiohttp.ClientSession]()
    tasks: set[asyncio.Task[None]] = set()

    def accept() -> None:
        _, fds, _, _ = socket.recv_fds(patrons, 1, 1)
        if not fds:
            ends.set()
            return
        task = asyncio.create_task(run(socket.socket(fileno=fds[0]), connections))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_reader(patrons, accept)
    await ends.wait()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
