"""Start, stop and break a lab."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import stat
from pathlib import Path
from typing import Self

from verl_hpc.errors import ClusterError
from verl_hpc.testing.slurm_lab import accounting, processes
from verl_hpc.testing.slurm_lab.programs import LabPrograms, missing
from verl_hpc.testing.slurm_lab.root import as_root
from verl_hpc.testing.slurm_lab.settings import DEFAULT_PARTITION, FREEZER, free_ports

_DIRECTORIES = ("run", "log", "state", "spool", "munge", "dev", "tmp")
_TIMEOUT_S = 60.0
_NODE = """\
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
if [ -d "$3" ]; then
    mount --rbind /sys "$3/../sys"
    mount -t tmpfs tmpfs /sys
    for entry in "$3"/../sys/*; do
        mkdir "/sys/${entry##*/}"
        mount --rbind "$entry" "/sys/${entry##*/}"
    done
    mkdir -p /sys/cray/pm_counters
    mount --bind "$3" /sys/cray/pm_counters
fi
if [ -n "$4" ]; then
    mount -t tmpfs tmpfs "${4%/*}"
    if [ "$1" = n0 ]; then mkdir -m 1777 "$4"; fi
fi
exec slurmd -N "$1"
"""
"""Script that starts a node: a slurmd with a host name, an /etc/hosts and a /dev/shm of its own.

Its fourth argument, if not empty, is `LabSettings.home`. With accounting, its third argument
replaces the directory of Cray's energy meters; /sys cannot get one more directory, so it is
rebuilt."""


def _remove_group(path: Path) -> None:
    """Remove a control group without processes, and those below it."""
    for directory, _, _ in os.walk(path, topdown=False):
        Path(directory).rmdir()


class Lab(LabPrograms):
    """A cluster on this machine; a context manager that starts and stops it.

    Raises:
        ClusterError: by any method, if a program of Slurm fails; the message is the program's.
    """

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def is_up(self) -> bool:
        return self._daemon("slurmctld") is not None

    def up(self) -> None:
        """Start every daemon, without jobs of an earlier start, and wait for all nodes.

        Raises:
            ClusterError: something is missing here, or the lab is up already.
        """
        if (reason := missing(self.settings.cgroup, self.settings.accounting)) is not None:
            raise ClusterError(reason)
        if self.is_up():
            raise ClusterError(f"the lab in {self.directory} is up; take it down first")
        first_port = self._write_files()
        try:
            self._start_munge()
            if self.settings.accounting:
                accounting.start(self, self.settings.database_port(first_port))
            self.start_controller("-c")
            for name in self.settings.all_names:
                self.start_node(name)
            self.wait_for_nodes()
        except ClusterError as error:
            self.down()
            raise ClusterError(
                f"{error}; what its daemons said is in {self.directory}/log"
            ) from None

    @as_root()
    def down(self) -> None:
        """End every daemon and every job, at once; logs stay."""
        groups = self.directory / "cgroup.conf"
        for file in sorted((self.directory / "run").glob("*.namespace")):
            self.kill_node(file.stem)
            if groups.stat().st_size:
                _remove_group(FREEZER / f"slurm_{file.stem}")
        for daemon in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            if (process := self._daemon(daemon)) is not None:
                processes.end([process])
        self._hand_over()

    @as_root()
    def administer(self, *words: str | Path) -> str:
        """Run a command as root, who may change Slurm's nodes."""
        return self.run(*words)

    @as_root()
    def start_controller(self, *options: str) -> None:
        """Start slurmctld; without options it keeps the jobs that it had."""
        self.run("slurmctld", *options)
        # A command sent before the controller listens waits for seconds before it tries again.
        if not processes.wait_for(self._controller_listens, _TIMEOUT_S):
            raise ClusterError("slurmctld does not listen")

    @as_root()
    def stop_controller(self) -> None:
        """End slurmctld, as for an upgrade; jobs keep running."""
        if (process := self._daemon("slurmctld")) is not None:
            processes.end([process], _TIMEOUT_S)

    @as_root()
    def start_node(self, name: str) -> None:
        """Boot a node."""
        for room in ("spool", "tmp"):
            (self.directory / room / name).mkdir(exist_ok=True)
        command = ["unshare", "--uts", "--mount", "sh", "-ec", _NODE, "node", name]
        self.run(*command, self.directory / "hosts", self._meters(name), self.settings.home or "")
        if not processes.wait_for(lambda: self._daemon(name) is not None, _TIMEOUT_S):
            raise ClusterError(f"slurmd of {name} did not start")
        namespace = processes.namespace_of(self._daemon(name) or 0)
        self._namespace_file(name).write_text(str(namespace))

    @as_root()
    def kill_node(self, name: str) -> None:
        """Cut a node's power: kill all of its processes without any word to the controller."""
        while left := self.processes_of(name):
            processes.send(signal.SIGKILL, left)
            processes.wait_for(lambda: not any(map(processes.is_alive, left)), 1.0)
        self._namespace_file(name).unlink(missing_ok=True)

    @as_root()
    def processes_of(self, name: str) -> list[int]:
        """Return all processes of a node: slurmd, steps, ranks."""
        file = self._namespace_file(name)
        if not file.exists():
            return []
        # Numbers of namespaces are reused; the variable distinguishes ours from a stranger's.
        return [p for p in processes.in_namespace(file.read_text()) if self._is_ours(p)]

    def mend(self) -> None:
        """Boot the nodes that are dead, and wait for all."""
        for name in self.settings.node_names:
            if not self.processes_of(name):
                self.start_node(name)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Wait until every node can take jobs."""
        wanted = set(self.settings.node_names)
        if not processes.wait_for(lambda: self._nodes("idle,mix,alloc") == wanted, _TIMEOUT_S, 0.2):
            raise ClusterError(f"not ready: {' '.join(sorted(wanted - self._nodes('idle')))}")

    def _nodes(self, states: str) -> set[str]:
        words = ("--noheader", "--Node", "--responding", "--format=%N", f"--states={states}")
        return set(self.run("sinfo", *words, f"--partition={DEFAULT_PARTITION}").split())

    def _controller_listens(self) -> bool:
        text = self.settings.slurm_conf.read_text()
        port = int(text.partition("SlurmctldPort=")[2].split()[0])
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _namespace_file(self, name: str) -> Path:
        return self.directory / "run" / f"{name}.namespace"

    @as_root()
    def _daemon(self, name: str) -> int | None:
        process = processes.read_pid(self.directory / "run" / f"{name}.pid")
        return process if process is not None and self._is_ours(process) else None

    def _is_ours(self, process: int) -> bool:
        (variable,) = self.environment.items()
        return processes.has_variable(process, *variable)

    def set_meter(self, name: str, joules: int) -> None:
        """Set a node's energy meter, in a lab with accounting, to a count of joules."""
        meter = self._meters(name)
        meter.mkdir(parents=True, exist_ok=True)
        for name, text in (("energy", f"{joules} J\n"), ("power", "0 W\n")):
            # Slurm may read it at any moment.
            (meter / f".{name}").write_text(text)
            (meter / f".{name}").replace(meter / name)

    def _meters(self, name: str) -> Path:
        return self.directory / "meters" / name

    def _write_files(self) -> int:
        for room in _DIRECTORIES:
            (self.directory / room).mkdir(parents=True, exist_ok=True)
        (self.directory / "munge").chmod(0o700)
        key = self.directory / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        for index in range(self.settings.gpus):
            device = self.directory / f"dev/gpu{index}"
            if not device.exists():
                self._make_device(device)
        ports = free_ports(self.directory, self.settings.num_ports())
        for file, text in self.settings.files(ports).items():
            (self.directory / file).write_text(text)
            (self.directory / file).chmod(0o600 if file == "slurmdbd.conf" else 0o644)
        if self.settings.accounting:
            (self.directory / "meters/sys").mkdir(parents=True, exist_ok=True)
            for name in self.settings.node_names:
                self.set_meter(name, 0)
        return ports

    def _hand_over(self) -> None:
        """Give files of daemons to the owner of the directory, so that the owner may remove
        them."""
        owner = self.directory.stat()
        if owner.st_uid:
            for path in self.directory.rglob("*"):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    @as_root()
    def _make_device(self, path: Path) -> None:
        os.mknod(path, stat.S_IFCHR, Path("/dev/null").stat().st_rdev)
        path.chmod(0o666)

    def _start_munge(self) -> None:
        # --force: the directory need not be below one that everybody may enter.
        munge = self.directory / "munge"
        self.run(
            "munged",
            "--force",
            f"--key-file={munge}/key",
            f"--seed-file={munge}/seed",
            f"--log-file={self.directory}/log/munged.log",
            f"--pid-file={self.directory}/run/munged.pid",
            f"--socket={self.settings.munge_socket}",
        )
