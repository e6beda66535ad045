"""Ranks of one machine that share one import: forks, for which what mpiexec starts stands in.

Ranks that have few cores for each of them import torch, Megatron-core and vLLM one after another;
one process imports them once here, and its forks are the ranks. What mpiexec starts for a rank (see
`stand_in`) hands over its environment, its standard streams and its channel to mpiexec, passes
signals on, and ends as the fork does. MPI starts in the fork, as in any other rank.

It takes processes of one machine, and an mpiexec whose ranks reach it over a descriptor (MPICH's
Hydra). Below srun every task has its own cores, limits and cgroup, which a fork of another task's
process would not be in.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verl_hpc.errors import LaunchError
from verl_hpc.runtime import environment, terminal
from verl_hpc.runtime.children import end_with_parent
from verl_hpc.runtime.host_memory import available_bytes
from verl_hpc.runtime.stand_in import NUMBER_BYTES, PASSED_ON
from verl_hpc.runtime.stop import ONE_SIGNAL_S

_LAUNCHERS = ("PMI_RANK", "PMIX_RANK", "SLURM_JOB_ID")
_TAKEN = (*PASSED_ON, signal.SIGINT)
_LOOK_EVERY_S = 0.05
_RANKS_PER_CORE = 16
"""Most ranks on a core, which take turns, so that small machines can try large layouts."""
_RANK_BYTES = 256 << 20
"""What a rank of the smallest model has for itself, beside what it shares with the others."""
_TOLERATED = "jemalloc_bg_thd"
"""A thread of pyarrow's allocator, which expects forks."""


def check_alone() -> None:
    """Refuse to start ranks where a launcher does.

    Raises:
        LaunchError: this is a rank already, or a job of Slurm.
    """
    launchers = [name for name in _LAUNCHERS if name in os.environ]
    if launchers:
        raise LaunchError(
            f"--ranks starts ranks on one machine, and {launchers[0]} is set: a launcher has "
            "started this process. Leave --ranks out; under Slurm start the ranks with srun"
        )


def check_size(size: int) -> None:
    """Refuse more ranks than this machine can run, before it stops answering.

    Raises:
        LaunchError: they are too many for its cores or its memory, or none.
    """
    if size < 1:
        raise LaunchError(f"--ranks {size}: choose 1 or more")
    cores = len(os.sched_getaffinity(0))
    free = available_bytes()
    bounds = {
        f"{_RANKS_PER_CORE} on each of the {cores} cores that it may use": _RANKS_PER_CORE * cores,
        f"one for each {_RANK_BYTES >> 20} MiB of the {free / 2**30:.1f} GiB of memory that are "
        "free": free // _RANK_BYTES,
    }
    reason, most = min(bounds.items(), key=lambda item: item[1])
    if size > most:
        raise LaunchError(
            f"--ranks {size}: this machine can run at most {most}, {reason}; choose fewer, or "
            "start the run on more machines, with mpiexec or srun"
        )


def start_ranks(size: int) -> int | None:
    """Fork `size` ranks off this process, which has imported what they need.

    Returns:
        Here, once all ranks have ended, the status of the first that failed by itself, or that of
        mpiexec; None in each rank.

    Raises:
        LaunchError: there is no mpiexec, or a thread runs here, which forks would not have.
    """
    _check_threads()
    mpiexec = _mpiexec()
    address = f"verl_hpc-{os.getpid()}-{size}"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind("\0" + address)
    door.listen(size)
    door.settimeout(_LOOK_EVERY_S)
    stand_in = Path(__file__).with_name("stand_in.py")
    program = [sys.executable, "-S", "-E", str(stand_in), address]
    variables = {**os.environ, **terminal.for_ranks()}
    job = subprocess.Popen([mpiexec, "-n", str(size), *program], env=variables)
    lines: dict[int, socket.socket] = {}
    failed = 0
    signals = _Signals(job)
    num_started = 0
    with door, signals.taken():
        while job.poll() is None:
            with suppress(TimeoutError):
                line, _ = door.accept()
                process, user = _peer(line)
                rank = _fork(line, process) if user == os.getuid() else None
                if rank is None:
                    line.close()
                    continue
                if rank == 0:
                    for other in lines.values():
                        other.close()
                    return None
                lines[rank] = line
                num_started += 1
                signals.all_started = num_started == size
            for rank, line in list(lines.items()):
                status = _end(rank, line)
                if status is not None:
                    del lines[rank]
                    failed = failed or max(status, 0)
    for rank in lines:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
    number = signals.ended_by or -job.returncode
    return 128 + number if number > 0 else failed or job.returncode


def _check_threads() -> None:
    tasks = Path("/proc/self/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks if int(task.name) != os.getpid()]
    started = sorted(set(names) - {_TOLERATED})
    if started:
        raise LaunchError(
            f"--ranks: a library has started threads while it was imported ({', '.join(started)}), "
            "which forked ranks would not have; leave --ranks out and start with mpiexec"
        )


def _mpiexec() -> str:
    """Return the mpiexec of this environment's MPI library."""
    beside = Path(sys.executable).with_name("mpiexec")
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise LaunchError(
            f"--ranks: there is no mpiexec beside {sys.executable}, and none in PATH; install the "
            "mpich wheel (requirements/cpu.txt)"
        )
    return program


class _Signals:
    """What is sent to the process that has the ranks.

    It is passed on, and ranks save and leave at the end of their step. They are killed at the
    second SIGTERM or SIGINT, and at the first where some have not started: there is nothing to
    save.
    """

    def __init__(self, job: subprocess.Popen[bytes]) -> None:
        self._job = job
        self._first: float | None = None
        self.all_started = False
        self.ended_by = 0
        """The signal at which ranks were killed."""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Until the end, which is also that of a fork."""
        before = {number: signal.signal(number, self._take) for number in _TAKEN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)

    def _take(self, number: int, _: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT) and self._is_last(number):
            self.ended_by = number
            # What it has started ends with it.
            self._job.kill()
        elif number != signal.SIGINT:  # which a terminal sends to mpiexec, too
            self._job.send_signal(number)

    def _is_last(self, number: int) -> bool:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return not self.all_started
        return number == signal.SIGINT or now > self._first + ONE_SIGNAL_S


def _peer(line: socket.socket) -> tuple[int, int]:
    """The process at the other end, and its user."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", credentials)
    return process, user


def _fork(line: socket.socket, stand_in: int) -> int | None:
    """A rank in place of the process `stand_in` at the other end of `line`.

    Returns:
        Its process here, 0 there; None if the process `stand_in` has ended.
    """
    handed: list[int] = []
    with suppress(ConnectionError):
        _, handed, _, _ = socket.recv_fds(line, NUMBER_BYTES, 4)
    if not handed:
        return None
    sys.stdout.flush()
    parent = os.getpid()
    # Until the fork has handlers of its own: those of this process would act on its signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    rank = os.fork()
    if rank == 0:
        line.close()
        _stand_for(stand_in, parent, handed)
        return 0
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)
    for descriptor in handed:
        os.close(descriptor)
    with suppress(ConnectionError):
        line.send(str(rank).encode())
    return rank


def _stand_for(stand_in: int, parent: int, handed: list[int]) -> None:
    """Take over what mpiexec gave to the process `stand_in`; end when this one's parent does."""
    end_with_parent(parent)
    os.setsid()  # as mpiexec's own: a terminal's signals reach it through mpiexec
    *streams, channel = handed
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.sched_setaffinity(0, os.sched_getaffinity(stand_in))
    environment.take_over(stand_in, PMI_FD=str(channel))


def _end(rank: int, line: socket.socket) -> int | None:
    """A rank's status once it has ended, after telling its stand-in; None while it runs.

    A rank whose stand-in was killed is killed here.
    """
    process, status = os.waitpid(rank, os.WNOHANG)
    if process:
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):
            line.send(str(code).encode())
        line.close()
        return code
    with suppress(BlockingIOError):
        line.recv(1, socket.MSG_DONTWAIT)
        os.kill(rank, signal.SIGKILL)
    return None
