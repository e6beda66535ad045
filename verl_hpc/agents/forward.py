"""Run a program that reaches a model endpoint over TCP:
`forward.py SOCKET REPORT PACKED ROOT DIRECTORY COMMAND...`.

SOCKET is the endpoint's Unix socket; a port of the loopback is forwarded to it. REPORT is the
descriptor of a file for the program's score. PACKED is -1, or that of a file for what the program
leaves in its home, or of what another has left and this one finds. ROOT is the directory that
becomes the command's root, or empty, and DIRECTORY where it starts. This file is run by its path
and imports nothing but the standard library: in a sandbox, where it is the first process, little
else is there.
"""

import os
import signal
import socket
import stat
import struct
import sys
import threading
import time
import warnings  # noqa: F401 os.execvp imports it, and finds it in no other root
from contextlib import suppress

MOST_SCORE_BYTES = 2**20
GOOD, BAD = b"=", b"!"
"""First byte of the report: the score follows, or what is wrong."""
_UNREADABLE = BAD + b"the file named by VERL_HPC_SCORE cannot be read: "
_PIECE = 65536
_KEPT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, signal.SIGUSR2}
"""Signals that nobody can ignore, and Slurm's warnings, which stay ignored: they are for the
rank."""


def main(
    endpoint: str, report: int, packed: int, root: str, directory: str, command: list[str]
) -> int:
    """Run a command; return its exit status as a shell does."""
    home = root + os.environ["HOME"]
    follows = packed >= 0 and os.fstat(packed).st_size > 0
    if follows:
        _unpack(packed, home)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    os.environ.update(OPENAI_BASE_URL=f"{address}/v1", ANTHROPIC_BASE_URL=address)
    for name in ("NO_PROXY", "no_proxy"):  # clients would ask the site's proxy for the loopback
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    child = os.fork()
    if child == 0:
        for descriptor in filter(lambda number: number >= 0, (report, packed)):
            os.close(descriptor)
        _become(root, directory, command)
    threading.Thread(target=_accept, args=(listener, endpoint), daemon=True).start()
    # Orphans come to this process, and are waited for, too.
    while (ended := os.wait())[0] != child:
        pass
    if os.getpid() == 1:  # in a sandbox: nothing changes its files any more
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.wait()
    if packed >= 0 and not follows:
        os.write(report, _pack(packed, home))
    else:
        os.write(report, _score(root + os.environ["VERL_HPC_SCORE"]))
    code = os.waitstatus_to_exitcode(ended[1])
    return 128 - code if code < 0 else code


def _become(root: str, directory: str, command: list[str]) -> None:
    """Become a command, or end."""
    try:
        if root:
            _enter(root)
        os.chdir(directory)
        for number in signal.valid_signals() - _KEPT:
            with suppress(OSError):  # some are the C library's
                signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        words = "in a sandbox it has to be below rollout.program.directory or paths"
        print(f"the command {command[0]!r} cannot be started: {error}; {words}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(127)


def _enter(root: str) -> None:
    """Make a directory the root of this process, which then has no capability any more."""
    import ctypes  # it is not in that root

    libc = ctypes.CDLL(None, use_errno=True)
    os.chroot(root)
    if libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")


def _pack(packed: int, home: str) -> bytes:
    """Write what a program leaves in its home into a file; return what is wrong with it."""
    import tarfile

    device = os.lstat(home).st_dev

    def left(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name in ("./row.json", "./score.json"):
            return None
        # What is read-only may be mounted below.
        return member if os.lstat(f"{home}/{member.name}").st_dev == device else None

    try:
        with (
            open(packed, "wb", closefd=False) as file,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            archive.add(home, ".", filter=left)
    except OSError as error:
        return BAD + f"its files cannot be kept for program.score: {error}".encode()
    return b""


def _unpack(packed: int, home: str) -> None:
    import tarfile

    os.lseek(packed, 0, os.SEEK_SET)
    with open(packed, "rb", closefd=False) as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(home, filter="fully_trusted")  # noqa: S202


def _score(path: str) -> bytes:
    """Read the score, whatever the program has put in its place; nothing if there is nothing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return _UNREADABLE + b"it is not a regular file"
        with open(file, "rb") as opened:  # noqa: PTH123
            text = opened.read(MOST_SCORE_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        return _UNREADABLE + str(error.strerror).encode()
    if len(text) > MOST_SCORE_BYTES:
        return _UNREADABLE + b"it is larger than %d bytes" % MOST_SCORE_BYTES
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
    socket_path, report_fd, packed_fd, new_root, start, *words = sys.argv[1:]
    status = main(socket_path, int(report_fd), int(packed_fd), new_root, start, words)
    sys.stderr.flush()
    os._exit(status)
