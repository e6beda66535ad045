"""What processes of one rank write to each other: a length, and JSON or bytes."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

_LENGTH = struct.Struct("!Q")
_PIECE = 2**20


def send(to: socket.socket, values: Mapping[str, Any]) -> None:
    """Raises: OSError: nobody reads there any more."""
    send_bytes(to, json.dumps(values).encode())


def receive(of: socket.socket) -> Any:
    """What `send` has sent.

    Raises:
        EOFError: the other end is closed.
    """
    return json.loads(receive_bytes(of))


def send_bytes(to: socket.socket, data: bytes) -> None:
    """Raises: OSError: nobody reads there any more."""
    to.sendall(_LENGTH.pack(len(data)) + data)


def receive_bytes(of: socket.socket) -> bytes:
    """What `send_bytes` has sent.

    Raises:
        EOFError: the other end is closed.
    """
    (length,) = _LENGTH.unpack(_exactly(of, _LENGTH.size))
    return _exactly(of, length)


def _exactly(of: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            piece = of.recv(min(size - len(found), _PIECE))
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
