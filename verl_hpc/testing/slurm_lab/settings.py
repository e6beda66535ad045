"""Settings of a lab, and the Slurm configuration files that follow from them."""

from __future__ import annotations

import os
import socket
import zlib
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.errors import ClusterError

DEFAULT_PARTITION = "debug"
URGENT_PARTITION = "urgent"
"""Partition whose jobs preempt those of the default one, which go back into the queue."""
LOGIN = "login"
"""The node of `LabSettings.login_node`, and its partition."""

_FIRST_PORT, _LAST_PORT = 12000, 32000
"""Range of ports, below those that the kernel hands out by itself."""
_JOBS_OF_A_PORT = 40
"""Job numbers per port of a lab; they stay short, since names of sockets contain them."""
_LONGEST_SOCKET_PATH = 107
_HOSTS = Path("/etc/hosts")
FREEZER = Path("/sys/fs/cgroup/freezer")
"""Linux's directory of process groups that `LabSettings.cgroup` needs."""
_CONTROLLER = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
# Jobs of two labs share /tmp, where names have the numbers of jobs in them.
FirstJobId={first_job}
AuthType=auth/munge
CredType=cred/munge
# A job that is requeued waits until its credentials have expired: two minutes by default, and if
# less than five seconds are asked for.
AuthInfo=socket={munge_socket},cred_expire=5
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmctldDebug=info
SlurmctldTimeout=10
ReturnToService=2
MinJobAge=3600
MessageTimeout=10
"""
_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser={user}
LogFile={directory}/log/slurmdbd.log
PidFile={directory}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={munge_socket}
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
# Each node has a meter of its own, a file that a test writes, in place of /sys/cray/pm_counters.
AcctGatherEnergyType=acct_gather_energy/pm_counters
JobAcctGatherFrequency=1
AcctGatherNodeFreq=1
"""
_NO_ACCOUNTING = """\
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""
_NODES = """\
SlurmdSpoolDir={directory}/spool/%n
SlurmdPidFile={directory}/run/%n.pid
SlurmdLogFile={directory}/log/%n.log
SlurmdDebug=info
# More cores and memory than there are, on nodes that are one machine.
SlurmdParameters=config_overrides
# The PMIx plugins of two nodes would share a directory in /tmp.
TmpFS={directory}/tmp/%n
# No affinity, and no limits: the lab runs in containers and without systemd.
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
# A dead node is noticed after this many seconds.
SlurmdTimeout=5
KillWait={kill_wait_s}
GresTypes=gpu
PlugStackConfig={directory}/plugstack.conf
include {directory}/nodes.conf
"""
_SCHEDULING = """\
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory_per_cpu}
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
PartitionName={default} Nodes={nodes} Default=YES PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName={urgent} Nodes={nodes} PriorityTier=2 PreemptMode=OFF
"""
_LOGIN = f"PartitionName={LOGIN} Nodes={LOGIN}\n"
_CGROUP = f"""\
CgroupPlugin=cgroup/v1
CgroupMountpoint={FREEZER.parent}
CgroupAutomount=no
"""


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """Size and place of a lab."""

    directory: Path
    """Directory of all of a lab's files; absolute, and short enough for the path of a socket."""
    nodes: int = 4
    """Number of nodes, called n0, n1, ..."""
    cpus: int = 8
    """CPUs of each node, as Slurm counts them."""
    gpus: int = 0
    """GPUs of each node: copies of /dev/null, enough for Slurm to hand out."""
    grace_s: int = 30
    """Seconds between TERM and the end of a preempted job."""
    kill_wait_s: int = 30
    """Seconds between TERM and KILL in all other cases; 30 is Slurm's own default."""

    cgroup: bool = False
    """Track a job's processes as most clusters do: signals other than KILL then reach only the
    first process of each rank, instead of all. Only one such lab may run at a time."""
    accounting: bool = False
    """Keep accounts, with slurmdbd and MariaDB, and meter energy: `sacct`, `sacctmgr` and `sreport`
    answer. It takes some seconds more to come up."""

    home: Path | None = None
    """A directory that differs on the nodes: empty on n0 and missing on others, as are its
    siblings, as if the submitter's HOME were on no file system of the nodes."""
    login_node: bool = False
    """Add a node in a partition of its own, both called `login`, for work inside an allocation.
    Only jobs that ask for it get there."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ClusterError(f"--nodes {self.nodes}: a lab has at least one node")
        name = max(self.all_names, key=len)
        longest = f"/spool/{name}/{name}_999999.4294967291"
        if len(f"{self.directory}{longest}") > _LONGEST_SOCKET_PATH:
            raise ClusterError(
                f"--dir {self.directory}: too long for the path of a socket; choose one of at "
                f"most {_LONGEST_SOCKET_PATH - len(longest)} characters"
            )

    @property
    def node_names(self) -> list[str]:
        return [f"n{index}" for index in range(self.nodes)]

    @property
    def all_names(self) -> list[str]:
        """All of `node_names`, and the name of `login_node`."""
        return self.node_names + [LOGIN] * self.login_node

    @property
    def munge_socket(self) -> Path:
        return self.directory / "run/munge.socket"

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "slurm.conf"

    def files(self, first_port: int) -> dict[str, str]:
        """Return the configuration files by name; ports from `first_port` on belong to the lab."""
        values: dict[str, object] = {
            "directory": self.directory,
            "host": socket.gethostname(),
            "user": "root",
            "controller_port": first_port,
            "first_job": (first_port - _FIRST_PORT) * _JOBS_OF_A_PORT + 1,
            "munge_socket": self.munge_socket,
            "memory_per_cpu": max(_memory_mib() // self.cpus, 1),
            "default": DEFAULT_PARTITION,
            "urgent": URGENT_PARTITION,
            "nodes": ",".join(self.node_names),
            "grace_s": self.grace_s,
            "kill_wait_s": self.kill_wait_s,
            "proctrack": "cgroup" if self.cgroup else "linuxproc",
            "dbd_port": self.database_port(first_port) - 1,
            "database_port": self.database_port(first_port),
        }
        accounts = _ACCOUNTING if self.accounting else _NO_ACCOUNTING
        partitions = _SCHEDULING + _LOGIN * self.login_node
        database = {"slurmdbd.conf": _DATABASE.format(**values)} if self.accounting else {}
        return database | {
            "slurm.conf": (_CONTROLLER + accounts + _NODES + partitions).format(**values),
            "nodes.conf": self._nodes_conf(first_port + 1),
            "gres.conf": self._gres_conf(),
            "cgroup.conf": _CGROUP if self.cgroup else "",
            "plugstack.conf": "",
            "hosts": f"{_HOSTS.read_text()}\n127.0.0.1 {' '.join(self.all_names)}\n",
        }

    def num_ports(self) -> int:
        return len(self.all_names) + 1 + 2 * self.accounting

    def database_port(self, first_port: int) -> int:
        """Return the port on which MariaDB listens, with accounting."""
        return first_port + len(self.all_names) + 2

    def _nodes_conf(self, first_port: int) -> str:
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        size = f"CPUs={self.cpus} RealMemory={_memory_mib()}{gres} State=UNKNOWN"
        return "".join(
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={first_port + i} {size}\n"
            for i, name in enumerate(self.all_names)
        )

    def _gres_conf(self) -> str:
        if not self.gpus:
            return ""
        nodes, gpus = ",".join(self.all_names), f"[0-{self.gpus - 1}]"
        return f"NodeName={nodes} Name=gpu File={self.directory}/dev/gpu{gpus}\n"


def free_ports(directory: Path, count: int) -> int:
    """Return the first of `count` free ports in a row.

    The search starts at a place that depends on the directory, so that labs that start at the same
    moment choose different ones.

    Raises:
        ClusterError: there are none.
    """
    span = _LAST_PORT - _FIRST_PORT - count
    start = zlib.crc32(str(directory).encode()) % span
    for offset in range(0, span, count):
        first = _FIRST_PORT + (start + offset) % span
        if all(map(_is_free, range(first, first + count))):
            return first
    raise ClusterError(f"no {count} free ports from {_FIRST_PORT} to {_LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _memory_mib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
