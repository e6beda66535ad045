"""Start MPI so that all ranks connect and none hangs."""

from __future__ import annotations

import atexit
import faulthandler
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from verl_hpc.errors import LaunchError
from verl_hpc.runtime import environment
from verl_hpc.runtime.debug.debugger import hide_from_debugger

if TYPE_CHECKING:
    from mpi4py import MPI

_PROGRESS_INTERVAL_S = 0.02
_STDERR = 2
_MAPS = Path("/proc/self/maps")
_SEGMENT = "/dev/shm/mpich_shm_"  # noqa: S108 (a name that is read, not made)
_started: list[Callable[[], None]] = []
"""Ends of threads."""


def start_mpi(timeout_s: float) -> ModuleType:
    """Meet the job's other ranks in MPI_Init_thread, and keep messages moving; once a process.

    MPI delivers only while its functions are called: what a rank has sent may lie in a buffer of
    its own until its next call, and it may wait for the receiver somewhere else by then (MPI 4.1,
    3.5, "progress"). A thread therefore calls one of them now and then.

    Args:
        timeout_s: a rank that has not met all others by then prints where it waits and ends with
            status 1. No Python code can run while MPI starts.

    Returns:
        mpi4py.MPI.

    Raises:
        LaunchError: the library does not let two threads call it.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    from mpi4py import MPI

    if not MPI.Is_initialized():
        environment.choose_mpi_network(MPI.Get_library_version())
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=_STDERR)
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        MPI.COMM_WORLD.Barrier()
        _unlink_segments()
        faulthandler.cancel_dump_traceback_later()
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise LaunchError(
            "MPI does not provide MPI_THREAD_MULTIPLE; set MPICH_MAX_THREAD_SAFETY=multiple for "
            "Cray MPICH, or do without MPI: mpi: none in the site profile"
        )
    if not _started and MPI.COMM_WORLD.size > 1:
        _start_progress(MPI.COMM_WORLD)
    return MPI


def _unlink_segments() -> None:
    """Take away the names of MPICH's shared memory once every rank has it open.

    The memory then goes with the last rank, also where all are killed.
    """
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        name = line.split(maxsplit=5)[-1]
        if name.startswith(_SEGMENT):
            Path(name).unlink(missing_ok=True)


def _start_progress(world: MPI.Comm) -> None:
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(_PROGRESS_INTERVAL_S):
            world.Iprobe()

    thread = threading.Thread(target=run, name="verl_hpc-mpi", daemon=True)
    hide_from_debugger(thread)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    _started.append(end)
    # Before MPI_Finalize, which mpi4py calls after all that Python does at exit.
    atexit.register(end)


def stop_mpi() -> None:
    """Call MPI_Finalize now, not when Python ends: it may wait for a thread before."""
    from mpi4py import MPI

    for end in _started:
        end()
    if not MPI.Is_finalized():
        MPI.Finalize()
