"""lock.json: the one process that may write to a run directory.

Rank 0 makes it when a run starts and removes it when the run ends. File locks (flock, fcntl) are
off on many parallel file systems; creating a file that must not exist works on all of them. The
time of the file is renewed while the process lives.

A process that was killed leaves its file. Whoever comes next takes it over at once if the holder
cannot live: its process on this machine is gone, the machine was restarted, the same Slurm job was
started again, or Slurm says that its job is over. Otherwise it waits until the file has not been
renewed for two minutes.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import socket
import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from types import TracebackType

from verl_hpc.config.regular_file import open_regular
from verl_hpc.errors import ClusterError, ConfigError, InUseError
from verl_hpc.runs.heartbeat import slurm_job
from verl_hpc.runs.process import stat_fields
from verl_hpc.runs.queue import ACTIVE, WAITING
from verl_hpc.runs.records import read_record
from verl_hpc.slurm.tools import Runner, job_details, run_tool

FILE = "lock.json"

BEAT_S = 5.0
STALE_S = 120.0
"""Seconds without renewal after which a file has no holder."""
GRACE_S = 5.0
"""Seconds for a process on this machine to end after its launcher was killed."""
_LEAST_WATCH_S = 3 * BEAT_S
"""Seconds of watching before a file's time is believed, as clocks differ."""
_NEW_FILES = (".*.new", "lives/.*.new", "rows/.*.new")
_PAUSE_S = 0.2

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """A process that holds a run directory."""

    token: str
    """Random id of this process."""
    host: str
    boot: str
    """Boot id of the machine, which its containers share; new at each boot."""
    pids: str
    """Process id namespace: ids are comparable within it."""
    pid: int
    born: int
    """Start of the process in clock ticks since the machine's start."""
    job_id: str | None
    restarts: int
    started: float
    """Seconds since the epoch."""

    def __str__(self) -> str:
        job = f"job {self.job_id}, " if self.job_id else ""
        since = datetime.fromtimestamp(self.started).astimezone()
        return f"process {self.pid} on {self.host} ({job}since {since:%Y-%m-%d %H:%M:%S})"


class RunLock(AbstractContextManager["RunLock"]):
    """Holds a run directory for this process until `release`; also a context manager.

    Args:
        run: an existing run directory.
        run_tool: runs Slurm's commands.

    Raises:
        InUseError: another process holds it.
        ConfigError: its file cannot be read.
        OSError: the directory cannot be written.
    """

    def __init__(self, run: Path, run_tool: Runner = run_tool) -> None:
        self._run = run
        self._path = run / FILE
        self._me = _myself()
        self._ask = run_tool
        self._descriptor = self._take()
        self._sweep()
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="run lock", daemon=True)
        self._beats.start()

    def check(self) -> None:
        """Make sure that nobody has taken the directory over.

        Raises:
            InUseError: somebody has done so, or has deleted the file.
        """
        holder = _read(self._path)
        if holder is None or holder.token != self._me.token:
            raise self._refusal(holder)

    def release(self) -> None:
        """Release the directory; a file that cannot be removed loses its holder after two
        minutes."""
        if self._over.is_set():
            return
        self._over.set()
        self._beats.join()
        try:
            os.close(self._descriptor)
            holder = _read(self._path)
            if holder is not None and holder.token == self._me.token:
                self._path.unlink(missing_ok=True)
        except OSError as error:  # what the run has done counts all the same
            _logger.warning("%s cannot be removed: %s", self._path, error)

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.release()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                os.utime(self._descriptor)  # of this very file, whatever has its name by now
            except OSError as error:
                _logger.warning("%s cannot be renewed: %s", self._path, error)

    def _take(self) -> int:
        while True:
            try:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                holder = _read(self._path)
                if self._wait_until_gone(holder):
                    self._remove(holder)
                else:
                    time.sleep(_PAUSE_S)
                continue
            try:
                os.write(descriptor, json.dumps(asdict(self._me)).encode())
            except OSError:
                os.close(descriptor)
                self._path.unlink(missing_ok=True)
                raise
            if _read(self._path) == self._me:
                return descriptor
            os.close(descriptor)

    def _wait_until_gone(self, holder: Holder | None) -> bool:
        """Return True once the holder is surely gone; False if the file is gone or has a new
        holder.

        Raises:
            InUseError: the holder lives.
            ConfigError: the file cannot be read.
        """
        first = _renewed(self._path)
        begin = time.monotonic()
        said = False
        over = holder is not None and _is_gone(holder, self._me, self._ask)
        while not over:
            renewed = _renewed(self._path)
            if _read(self._path) != holder or first is None or renewed is None:
                return False
            waited = time.monotonic() - begin
            # A holder on this machine is judged by its process, others by renewals of the file.
            if holder is not None and _is_here(holder, self._me):
                if not _is_running(holder):
                    return True
                if waited > GRACE_S:
                    raise self._refusal(holder)
            elif renewed != first:
                raise self._refusal(holder)
            elif waited > max(_LEAST_WATCH_S, STALE_S - max(time.time() - first, 0)):
                return True
            elif not said:
                said = True
                _logger.warning(
                    "%s is held by %s; waiting whether it lives", self._run, holder or "somebody"
                )
            time.sleep(_PAUSE_S)
        return True

    def _remove(self, stale: Holder | None) -> None:
        """Remove a stale file, and no other: one process at a time checks and removes."""
        guard = self._path.with_name(f".{FILE}.taking")
        try:
            os.close(os.open(guard, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            since = _renewed(guard)
            if since is not None and time.time() - since > STALE_S:
                guard.unlink(missing_ok=True)
            time.sleep(_PAUSE_S)
            return
        try:
            if _read(self._path) == stale:
                self._path.unlink(missing_ok=True)
        finally:
            guard.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the new files of writers that were killed before they could rename them."""
        now = os.fstat(self._descriptor).st_mtime
        for file in chain.from_iterable(map(self._run.glob, _NEW_FILES)):
            with suppress(OSError):  # somebody else's, or gone
                if now - file.stat().st_mtime > STALE_S:
                    file.unlink()

    def _refusal(self, holder: Holder | None) -> InUseError:
        return InUseError(
            f"{self._run}: in use by {holder or 'another process'}; two runs in one directory "
            "would spoil each other's checkpoints. Give this run another name, or end that one "
            f"first: python -m verl_hpc stop {self._run}"
        )


def _myself() -> Holder:
    job = slurm_job()
    return Holder(
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        boot=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        pids=str(Path("/proc/self/ns/pid").readlink()),
        pid=os.getpid(),
        born=_born(os.getpid()) or 0,
        job_id=job["job_id"],
        restarts=job["restarts"],
        started=time.time(),
    )


def _read(path: Path) -> Holder | None:
    """Return the holder in a file; None if it is missing or unreadable."""
    return read_record(path, Holder)


def _renewed(path: Path) -> float | None:
    """Return when the file was renewed, by the file system's clock; None if it is missing.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with open_regular(path) as file:  # opening makes NFS look
            return os.fstat(file.fileno()).st_mtime
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror or error}), so that nobody can tell whether "
            "another process uses this run directory; if none does, delete it, or give this run "
            "another name"
        ) from None


def _is_gone(holder: Holder, me: Holder, ask: Runner) -> bool:
    """Whether the holder cannot live any more, without looking at its process."""
    if holder.job_id is not None and holder.job_id == me.job_id and holder.restarts < me.restarts:
        return True
    if holder.host == me.host and holder.boot != me.boot:
        return True
    if _is_here(holder, me) or holder.job_id in (None, me.job_id):
        return False
    try:
        return job_details(holder.job_id, ask)["JobState"] not in ACTIVE | WAITING
    except (ClusterError, KeyError):
        return False


def _is_here(holder: Holder, me: Holder) -> bool:
    return (holder.boot, holder.pids) == (me.boot, me.pids)


def _is_running(holder: Holder) -> bool:
    return _born(holder.pid) == holder.born


def _born(pid: int) -> int | None:
    """Return the start of a process, which distinguishes it from later ones of the same id; None if
    it has ended."""
    try:
        state, *numbers = stat_fields(pid)
    except OSError:
        return None
    return None if state in "ZX" else int(numbers[18])
