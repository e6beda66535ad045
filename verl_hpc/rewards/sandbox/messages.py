"""What a rank and a keeper write to each other: a length and JSON."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.rewards.sandbox.containment import Interpreter
from verl_hpc.rewards.sandbox.keeper import Job
from verl_hpc.rewards.sandbox.limits import Limits, Result

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Answer:
    """Of a keeper."""

    result: Result | None = None
    failure: str = ""
    """Why the program could not be run."""


def read_job(values: Mapping[str, Any]) -> Job:
    """The inverse of `asdict`."""
    limits, interpreter = Limits(**values["limits"]), Interpreter(**values["interpreter"])
    return Job(**{**values, "limits": limits, "interpreter": interpreter})


def read_answer(values: Mapping[str, Any]) -> Answer:
    """The inverse of `asdict`."""
    result = values["result"]
    return Answer(None if result is None else Result(**result), values["failure"])


def send(to: socket.socket, values: Mapping[str, Any]) -> None:
    """Raises: OSError: nobody reads there any more."""
    text = json.dumps(values).encode()
    to.sendall(_LENGTH.pack(len(text)) + text)


def receive(of: socket.socket) -> Any:
    """What `send` has sent.

    Raises:
        EOFError: the other end is closed.
    """
    (length,) = _LENGTH.unpack(_exactly(of, _LENGTH.size))
    return json.loads(_exactly(of, length))


def _exactly(of: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            piece = of.recv(min(size - len(found), 2**20))
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
