"""Run a program that reaches a model endpoint over TCP: `forward.py SOCKET REPORT COMMAND...`.

SOCKET is the endpoint's Unix socket; a port of the loopback is forwarded to it. REPORT is the
descriptor of a file for the program's score. This file is run by its path and imports nothing but
the standard library: in a sandbox, where it is the first process, little else is there.
"""

import os
import signal
import socket
import stat
import sys
import threading
import time
from contextlib import suppress

MOST_SCORE_BYTES = 2**20
GOOD, BAD = b"=", b"!"
"""First byte of the report: the score follows, or what is wrong with its file."""
_PIECE = 65536
_KEPT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, signal.SIGUSR2}
"""Signals that nobody can ignore, and Slurm's warnings, which stay ignored: they are for the
rank."""


def main(endpoint: str, report: int, command: list[str]) -> int:
    """Run a command; return its exit status as a shell does."""
    os.set_inheritable(report, False)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    os.environ.update(OPENAI_BASE_URL=f"{address}/v1", ANTHROPIC_BASE_URL=address)
    for name in ("NO_PROXY", "no_proxy"):  # clients would ask the site's proxy for the loopback
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    threading.Thread(target=_accept, args=(listener, endpoint), daemon=True).start()
    try:
        child = os.posix_spawnp(
            command[0], command, os.environ, setsigdef=signal.valid_signals() - _KEPT
        )
    except OSError as error:
        words = "in a sandbox it has to be below rollout.program.directory or paths"
        print(f"the command {command[0]!r} cannot be started: {error}; {words}", file=sys.stderr)
        return 127
    # Orphans come to this process, and are waited for, too.
    while (ended := os.wait())[0] != child:
        pass
    os.write(report, _score(os.environ["VERL_HPC_SCORE"]))
    code = os.waitstatus_to_exitcode(ended[1])
    return 128 - code if code < 0 else code


def _score(path: str) -> bytes:
    """Read the score, whatever the program has put in its place; nothing if there is nothing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return BAD + b"it is not a regular file"
        with open(file, "rb") as opened:  # noqa: PTH123
            text = opened.read(MOST_SCORE_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        return BAD + str(error.strerror).encode()
    if len(text) > MOST_SCORE_BYTES:
        return BAD + b"it is larger than %d bytes" % MOST_SCORE_BYTES
    return GOOD + text


def _accept(listener: socket.socket, endpoint: str) -> None:
    while True:
        try:
            arguments = (listener.accept()[0], endpoint)
            threading.Thread(target=_forward, args=arguments, daemon=True).start()
        except (OSError, RuntimeError):  # too many open files, or threads
            time.sleep(0.1)


def _forward(client: socket.socket, endpoint: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
        server.connect(endpoint)
        answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
        answers.start()
        _copy(client, server)
        answers.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(_PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one end is closed, and the other learns of it
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    status = main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    sys.stderr.flush()
    os._exit(status)
