"""What mpiexec starts as a rank of `forked_ranks`: it stands in for a fork, and ends as that does.

Run as a file, with nothing but the standard library.
"""

import os
import resource
import signal
import socket
import sys
from types import FrameType

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
NUMBER_BYTES = 16


def main() -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect("\0" + sys.argv[1])
    # A signal that comes now is delivered once there is somebody to pass it on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    socket.send_fds(line, [b"rank"], [0, 1, 2, int(os.environ["PMI_FD"])])
    rank = int(line.recv(NUMBER_BYTES))

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(rank, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    # A terminal sends it to mpiexec, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    # Nothing comes where the process is gone that would say it.
    code = int(line.recv(NUMBER_BYTES) or 1)
    if code < 0:
        end_by(-code)
    os._exit(code)


def end_by(number: int) -> None:
    """mpiexec tells a rank that was killed from one that failed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
