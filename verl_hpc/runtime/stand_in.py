"""What mpiexec starts as a rank of `forked_ranks`: it stands in for a fork, and ends as that does.

Run as a file, with nothing but the standard library.
"""

import os
import resource
import select
import signal
import socket
import sys
from types import FrameType

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_AFTER_START = (*PASSED_ON, signal.SIGINT)
NUMBER_BYTES = 16


def main() -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect("\0" + sys.argv[1])
    # A signal that comes now is delivered once there is somebody to pass it on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AFTER_START)
    channel = int(os.environ["PMI_FD"])
    socket.send_fds(line, [b"rank"], [0, 1, 2, channel])
    rank = int(line.recv(NUMBER_BYTES))

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(rank, number)

    def interrupt(number: int, _: FrameType | None) -> None:
        # As a terminal does, and mpiexec: to all processes of a rank.
        os.killpg(rank, number)

    # A signal that comes just before a blocking call does not end it, and Python would run the
    # handler only then: the signal's number here does.
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGINT, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AFTER_START)
    while line not in select.select([line, woken], [], [])[0]:
        woken.recv(NUMBER_BYTES)
    # Nothing comes where the process is gone that would say it.
    code = int(line.recv(NUMBER_BYTES) or 1)
    if code < 0:
        end_by(-code)
    # Hydra ends the other ranks when the channel of a rank that has not finalized MPI closes, but
    # not where it has reaped the process before, as it may when both end at once.
    os.close(channel)
    os._exit(code)


def end_by(number: int) -> None:
    """End this process by a signal: launchers tell a rank that was killed from one that failed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own is enough
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
