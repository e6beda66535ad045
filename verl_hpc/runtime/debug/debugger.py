"""debugpy inside a rank, for this user alone.

Whoever talks to a debugger runs any code he likes, and everybody on a node can reach a port of its
loopback address. So there are two: debugpy's own, which wants a secret that never leaves this
process, and a gate before it, which asks the kernel whose the other end of a connection is.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

_LOOPBACK = "127.0.0.1"
_TCP = Path("/proc/net/tcp")
_AUTHORIZE_S = 10.0

_gate: socket.socket | None = None
"""One a process, as debugpy itself."""


def listen() -> int:
    """Start the debugger, once a process; the program keeps running meanwhile.

    Nothing is forked: debugpy's adapter would be a child, which an MPI process must not have.

    Returns:
        The port of the loopback address that clients of the debug adapter protocol connect to.

    Raises:
        ImportError: debugpy is not installed.
        OSError: no port can be had.
    """
    global _gate
    if _gate is None:
        secret = secrets.token_hex(32)
        inner = _start_debugpy(secret)
        gate = socket.create_server((_LOOPBACK, 0))
        _start_thread(_keep_gate, gate, inner, secret)
        _gate = gate
    return int(_gate.getsockname()[1])


def _start_debugpy(secret: str) -> int:
    """debugpy.listen with a secret, for which it has no argument; returns its port."""
    hook = sys.breakpointhook
    import debugpy.server.api  # finds pydevd, which comes with it
    import pydevd

    # debugpy has put its own there, which knows neither our client nor time limits.
    sys.breakpointhook = hook
    assert debugpy.server.api is not None
    pydevd.settrace(
        host=_LOOPBACK,
        port=0,
        suspend=False,
        wait_for_ready_to_run=False,
        block_until_connected=False,
        patch_multiprocessing=False,
        access_token=secret,
    )
    debugger = pydevd.get_global_debugger()
    debugger.wait_for_server_socket_ready()
    return int(debugger._server_socket_name[1])


def hide_from_debugger(thread: threading.Thread) -> None:
    """Keep a thread running where a breakpoint stops all others: the debugger needs it."""
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def _start_thread(target: object, *arguments: object) -> None:
    thread = threading.Thread(
        target=target,  # type: ignore[arg-type]
        args=arguments,
        name="verl_hpc-debugger",
        daemon=True,
    )
    hide_from_debugger(thread)
    thread.start()


def _keep_gate(gate: socket.socket, inner: int, secret: str) -> None:
    while True:
        client, _ = gate.accept()
        try:
            if owner_of_peer(client) != os.getuid():
                raise PermissionError("another user")
            debugger = _authorized(inner, secret)
        except OSError:
            client.close()
            continue
        _start_thread(_copy, client, debugger)
        _start_thread(_copy, debugger, client)


def owner_of_peer(connection: socket.socket) -> int | None:
    """User id of the process at the other end of a loopback connection; None if nobody is there.

    Of a tunnel, that is the user who logged in.
    """
    ours, theirs = _hexadecimal(connection.getsockname()), _hexadecimal(connection.getpeername())
    for line in _TCP.read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        # Their end of it: its local address is the one we see as the peer's.
        if words[1] == theirs and words[2] == ours:
            return int(words[7])
    return None


def _hexadecimal(address: tuple[str, int]) -> str:
    """Write an address as the kernel does: the bytes of the host in the machine's order."""
    host = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{host:08X}:{address[1]:04X}"


def _authorized(port: int, secret: str) -> socket.socket:
    """A connection to debugpy that it takes commands from."""
    debugger = socket.create_connection((_LOOPBACK, port), _AUTHORIZE_S)
    arguments = {"debugServerAccessToken": secret}
    # Clients count from 1; what is not theirs must have another number.
    message = {"type": "request", "seq": 0, "command": "pydevdAuthorize", "arguments": arguments}
    body = json.dumps(message).encode()
    debugger.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    _read_until_authorized(debugger)
    debugger.settimeout(None)
    return debugger


def _read_until_authorized(debugger: socket.socket) -> None:
    """Take debugpy's answer, and what it says before, out of the client's way."""
    with debugger.makefile("rb", buffering=0) as stream:
        while True:
            length = 0
            while (line := stream.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = b""
            while len(body) < length:
                body += stream.read(length - len(body)) or b""
            if not body:
                raise ConnectionError("debugpy has closed the connection")
            message = json.loads(body)
            if message.get("command") == "pydevdAuthorize":
                if not message.get("success"):
                    raise ConnectionError("debugpy refuses its own secret")
                return


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until one end closes; then both are."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
