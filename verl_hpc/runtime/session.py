"""One rank's life: control plane, torch.distributed, failure handling and watchdog together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from verl_hpc.errors import ClusterError
from verl_hpc.runtime import environment, fabric, gloo, host_memory, limits
from verl_hpc.runtime.bootstrap import Bootstrap, Kind, check_address, choose
from verl_hpc.runtime.cache_archive import make_node_directory
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.device import gpu_bytes
from verl_hpc.runtime.fabric import Fabric
from verl_hpc.runtime.failure import FailureReporter, ending_the_job, install_excepthook
from verl_hpc.runtime.host_memory import FreedMemory
from verl_hpc.runtime.supervise import Note
from verl_hpc.runtime.watchdog import Watchdog
from verl_hpc.runtime.world import DeviceChoice, World, read_world

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore

    from verl_hpc.runtime.groups import Groups


@dataclass(frozen=True)
class Session:
    """What the rooms above need of the machine; exists between `start` and the end of the job."""

    world: World
    control: Control
    watchdog: Watchdog
    reporter: FailureReporter
    job: Bootstrap
    infiniband: Fabric | None = None
    """Adapters of this node, if NCCL is to use InfiniBand: as `fabric.wanted_infiniband`."""
    freed_memory: FreedMemory | None = None
    """What a rank on a CPU keeps of it: as `host_memory.keep_freed`."""

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device(self.world.device)

    @cached_property
    def groups(self) -> Groups:
        """Process groups of this rank; they end with the job."""
        from verl_hpc.runtime.groups import Groups

        return Groups()

    def enter(self, operator: str) -> None:
        """Name what this rank does now, for the watchdog and for a traceback's report."""
        self.watchdog.enter(operator)
        self.reporter.enter(operator)


@contextmanager
def session(
    *,
    collective_timeout_s: float = 1800.0,
    late_after_s: float = 120.0,
    threads_per_rank: int | None = None,
    device: DeviceChoice = "auto",
    bootstrap: Kind = "mpi",
    note: Note | None = None,
) -> Iterator[Session]:
    """Join the job; inside the body an exception on any rank ends all of them.

    Args:
        collective_timeout_s: a collective that takes longer raises, of torch.distributed and of the
            control plane; a rank that waits longer for MPI to start ends.
        late_after_s: how far behind a rank may be before it is reported.
        threads_per_rank: CPU threads; None takes this rank's cores, shared evenly with the
            ranks that may run on them, too.
        device: as of `read_world`; "cpu" hides the GPUs from every library of this process, and
            "any" takes TCP where InfiniBand or limits of the node would end NCCL.
        bootstrap: "mpi", or "slurm" for ranks of srun that find each other without MPI.
        note: for this process's parent, if it has one.

    Raises:
        LaunchError, ClusterError: as `choose`, `read_world`, `choose_network` and `start_torch`.
        ConfigError: more threads than a node has cores.
    """
    job = choose(bootstrap, collective_timeout_s)
    reporter = FailureReporter(job.rank, job.size, socket.gethostname(), note)
    install_excepthook(job, reporter)
    with ending_the_job(job, reporter):
        # Before torch is imported: it reads the environment once.
        limits.raise_limits()
        if device == "cpu":
            environment.hide_gpus()
        threads = environment.prepare_environment(threads_per_rank, job.sharers())
        control = Control(job.connect(), collective_timeout_s)
        control.together(lambda: environment.check_threads(threads))
        if device != "any":  # whoever wants to find out what is wrong looks at scratch itself
            control.together(make_node_directory)
        world = read_world(control, job.library, device)
        infiniband = None
        if world.device != "cpu":
            infiniband = choose_network(world, control, refuse=device != "any")
        freed_memory = host_memory.keep_freed() if world.device == "cpu" else None
        stores = start_torch(world, control, threads, collective_timeout_s)
        reporter.store = stores()
        watchdog = Watchdog(control, world.host, late_after_s)
        watchdog.start(stores())
        try:
            yield Session(world, control, watchdog, reporter, job, infiniband, freed_memory)
        finally:
            watchdog.stop()
        control.barrier()
        stop_torch()


def choose_network(world: World, control: Control, *, refuse: bool) -> Fabric | None:
    """Have NCCL use InfiniBand where a node has it, before it starts; every rank on a GPU calls it.

    Args:
        refuse: adapters that cannot be used and limits that GPUs cannot work with; otherwise NCCL
            gets TCP in their place, and who called can say what is wrong.

    Returns:
        As `fabric.wanted_infiniband`.

    Raises:
        ClusterError: naming the node, and what is wrong with it.
    """
    mine = fabric.wanted_infiniband(control, world.num_nodes)

    def look() -> str | None:
        limited = limits.trouble(with_infiniband=mine is not None, gpu_bytes=gpu_bytes())
        if refuse and mine is not None:
            fabric.check_fabric(mine)
        if refuse and limited is not None:
            raise ClusterError(f"{world.host}: {limited}")
        return limited

    limited = control.together(look)
    if mine is None:
        return None
    is_troubled = control.any(bool(fabric.trouble(mine) or limited))
    environment.use_network("Socket" if is_troubled else "IB")
    return mine


def start_torch(
    world: World, control: Control, threads: int, timeout_s: float
) -> Callable[[], TCPStore]:
    """Join torch.distributed over an address that rank 0 announces.

    Returns:
        A function that opens one more connection to the job's store.

    Raises:
        LaunchError: rank 0's node has no address on one of the others.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    timeout = timedelta(seconds=timeout_s)
    address = control.broadcast(
        "127.0.0.1" if world.num_nodes == 1 else environment.node_address(world.host)
    )
    control.together(lambda: check_address(address))
    master = None
    if world.rank == 0:
        master = dist.TCPStore(
            address, 0, world.size, is_master=True, wait_for_workers=False, timeout=timeout
        )
    port = control.broadcast(master.port if master else None)
    environment.announce_world(world, address, port)
    environment.choose_compiler(world.device)

    def connect() -> TCPStore:
        return dist.TCPStore(
            address, port, world.size, is_master=False, wait_for_workers=False, timeout=timeout
        )

    gloo.share_device()
    backend = "gloo"
    if world.device != "cpu":
        torch.cuda.set_device(world.device)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, store=master or connect(), rank=world.rank, world_size=world.size, timeout=timeout
    )
    if world.device != "cpu":
        # NCCL connects a group in its first operation, which therefore must have every rank in
        # it; the sends and receives of a transfer may not.
        dist.all_reduce(torch.zeros(1, device=world.device))
        torch.cuda.synchronize()
    return connect


def stop_torch() -> None:
    """Leave torch.distributed; ranks must have met just before."""
    import torch.distributed as dist

    dist.destroy_process_group()
