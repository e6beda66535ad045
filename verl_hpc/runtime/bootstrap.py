"""How the ranks of a job find each other: by MPI, or by Slurm's variables without any MPI library.

The second is for sites whose MPI and container disagree. Its ranks meet at a torch store on the
first node, at a port that all derive from the job's number.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NoReturn, Protocol

from verl_hpc.errors import LaunchError
from verl_hpc.runtime import environment
from verl_hpc.runtime.channel import Channel, MpiChannel
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.mpi import start_mpi, stop_mpi
from verl_hpc.slurm.hostlist import expand_hosts

Kind = Literal["mpi", "slurm"]

PORT = "VERL_HPC_PORT"
"""Variable for a site where another port must be used."""

_FORWARDED_WITHIN_S = 0.5
_KILLED_WITHIN_S = 60.0
# Below those that the kernel hands out by itself.
_FIRST_PORT, _NUM_PORTS = 20000, 12000
_NEEDED = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)


class Bootstrap(Protocol):
    """A way to become a rank."""

    rank: int
    size: int

    @property
    def library(self) -> str:
        """What carries the control plane, for messages."""

    def sharers(self) -> int:
        """Ranks of this node that may run on this one's cores, itself included. Does not import
        torch; every rank calls it."""

    def connect(self) -> Channel:
        """Meet the other ranks."""

    def meet(self) -> None:
        """Wait for all ranks, which are about to leave with an error that all have."""

    def leave(self) -> None:
        """Take leave of the other ranks at the end of the job; all call it."""

    def abort(self, status: int) -> NoReturn:
        """End every rank of the job, this one included."""


def choose(kind: Kind, timeout_s: float) -> Bootstrap:
    """The way that a job was started for.

    Args:
        timeout_s: how long ranks wait for each other, from MPI's start to the end.

    Raises:
        LaunchError: Slurm's variables are wanted, and this is no rank of srun.
    """
    if kind == "mpi":
        return MpiBootstrap(timeout_s)
    return SlurmBootstrap(read_step(os.environ), timeout_s)


class MpiBootstrap:
    """COMM_WORLD."""

    def __init__(self, timeout_s: float) -> None:
        self._mpi = start_mpi(timeout_s)
        self._timeout_s = timeout_s
        self._channel = MpiChannel(self._mpi.COMM_WORLD)
        self.rank: int = self._channel.rank
        self.size: int = self._channel.size

    @property
    def library(self) -> str:
        name = self._mpi.Get_library_version().rstrip("\x00").split("\n")[0]
        return f"MPI ({' '.join(name.split())})"

    def sharers(self) -> int:
        host, cores = socket.gethostname(), os.sched_getaffinity(0)
        said = Control(self._channel, self._timeout_s).allgather((host, cores))
        return sum(there == host and bool(theirs & cores) for there, theirs in said)

    def connect(self) -> Channel:
        return self._channel

    def meet(self) -> None:
        Control(self._channel, self._timeout_s).barrier()

    def leave(self) -> None:
        stop_mpi()

    def abort(self, status: int) -> NoReturn:
        # mpiexec drops output that it has not forwarded yet, such as the report of this rank.
        time.sleep(_FORWARDED_WITHIN_S)
        # sys.exit would leave peers waiting in a collective forever.
        self._mpi.COMM_WORLD.Abort(status)
        # Under srun it may return, with the step's end on its way. To exit by itself would leave
        # the other ranks all the time that Slurm gives a job after TERM.
        time.sleep(_KILLED_WITHIN_S)
        os._exit(status)


@dataclass(frozen=True)
class Step:
    """What srun tells one of its tasks."""

    job: int
    step: int
    rank: int
    size: int
    local_size: int
    cores: int | None
    """--cpus-per-task; None if it was not given."""
    hosts: tuple[str, ...]

    def sharers(self, cores: int, node_cores: int) -> int:
        """Ranks of this node that may run on this one's cores, itself included.

        A rank that may run on fewer cores than the node's ranks asked for together, on a node that
        has them, was bound to its own.

        Args:
            cores: that this rank may run on.
            node_cores: of the node.
        """
        asked = (self.cores or 0) * self.local_size
        return 1 if cores < asked <= node_cores else self.local_size

    @property
    def port(self) -> int:
        """Where rank 0 listens. Two steps that share a node get different ones, but for a chance
        of one in 12,000."""
        return _FIRST_PORT + (self.job * 131 + self.step) % _NUM_PORTS


def read_step(environ: Mapping[str, str]) -> Step:
    """Read Slurm's variables.

    Raises:
        LaunchError: one is missing, or none makes sense.
    """
    missing = [name for name in _NEEDED if name not in environ]
    if missing:
        raise LaunchError(
            f"--bootstrap slurm: {missing[0]} is not set; start the ranks with srun --mpi=none, "
            "or leave --bootstrap out to start with MPI"
        )
    hosts = tuple(expand_hosts(environ["SLURM_STEP_NODELIST"]))
    tasks = expand_counts(environ["SLURM_STEP_TASKS_PER_NODE"])
    size = int(environ["SLURM_NTASKS"])
    if len(tasks) != len(hosts) or sum(tasks) != size:
        raise LaunchError(
            f"--bootstrap slurm: SLURM_NTASKS={size} tasks are not "
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']} on "
            f"SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']}; do not change Slurm's variables"
        )
    return Step(
        job=int(environ["SLURM_JOB_ID"]),
        step=int(environ["SLURM_STEP_ID"]),
        rank=int(environ["SLURM_PROCID"]),
        size=size,
        local_size=tasks[int(environ["SLURM_NODEID"])],
        cores=int(environ["SLURM_CPUS_PER_TASK"]) if "SLURM_CPUS_PER_TASK" in environ else None,
        hosts=hosts,
    )


def check_address(host: str) -> None:
    """Refuse a name that means nothing here: torch would try it until its timeout.

    Raises:
        LaunchError: it does not resolve.
    """
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise LaunchError(
            f"{host}, the node of rank 0, has no address on {socket.gethostname()}: {error}; ranks "
            "in a container may need mounts of the node's /etc/hosts and /etc/resolv.conf"
        ) from None


def expand_counts(text: str) -> list[int]:
    """Slurm's tasks by node: `4(x2),3` gives 4, 4 and 3.

    Raises:
        LaunchError: it is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise LaunchError(f"SLURM_STEP_TASKS_PER_NODE={text}: expected counts such as 4(x2),3")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


class SlurmBootstrap:
    """A torch store on the first node, and gloo. No MPI library is loaded."""

    library = "gloo (by Slurm's variables, without MPI)"

    def __init__(self, step: Step, timeout_s: float) -> None:
        self._step, self._timeout_s = step, timeout_s
        self.rank, self.size = step.rank, step.size
        self._channel: Channel | None = None

    def sharers(self) -> int:
        return self._step.sharers(len(os.sched_getaffinity(0)), os.cpu_count() or 1)

    def connect(self) -> Channel:
        """Meet at the store.

        Raises:
            LaunchError: the first node has no address, the port is taken, nothing answers there, or
                another job does.
        """
        from verl_hpc.runtime.gloo_channel import GlooChannel

        self._channel = GlooChannel(self._open_store(), self.rank, self.size, self._timeout_s)
        return self._channel

    def meet(self) -> None:
        if self._channel is not None:
            Control(self._channel).barrier()

    def leave(self) -> None:
        """Nobody waits for this rank."""

    def abort(self, status: int) -> NoReturn:
        # srun --kill-on-bad-exit=1 ends the others. No cleaning up: it would wait for them.
        sys.stdout.flush()
        os._exit(status)

    def _open_store(self) -> Any:
        import torch.distributed as dist

        step = self._step
        host = "127.0.0.1"
        if len(step.hosts) > 1:
            host = environment.node_address(step.hosts[0])
        check_address(host)
        port = int(environment.setting(PORT, str(step.port)))
        name = f"{step.job}.{step.step}"
        try:
            store = dist.TCPStore(
                host,
                port,
                step.size,
                is_master=step.rank == 0,
                wait_for_workers=False,
                timeout=timedelta(seconds=self._timeout_s),
            )
            if step.rank == 0:
                store.set("verl_hpc/job", name)
            answering = store.get("verl_hpc/job").decode()
        except RuntimeError as error:
            what = "cannot listen at" if step.rank == 0 else "cannot reach"
            raise LaunchError(
                f"--bootstrap slurm: rank {step.rank} {what} {host}:{port} "
                f"({str(error).splitlines()[0]}); submit again, or set {PORT} in the site "
                "profile's environment"
            ) from None
        if answering != name:
            raise LaunchError(
                f"--bootstrap slurm: job {answering} answers at {host}:{port}, and this is {name}; "
                "submit again"
            )
        return store
