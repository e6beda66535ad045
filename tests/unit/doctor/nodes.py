"""A stand-in for two nodes of each public system: their ranks are threads of this process.

There is no GPU, no fabric and no second node here. What programs, drivers and torch would answer
on a node is written down in `Node`; what the doctor reads from programs and files of the node it
reads from real ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tests.unit.programs import program
from verl_hpc.config.spans import parse_spans
from verl_hpc.runtime import device, environment, fabric, limits, session, world
from verl_hpc.runtime.binding import Binding
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.fabric import Fabric
from verl_hpc.runtime.preflight import devices, examine, gpu, network, node
from verl_hpc.runtime.preflight import fabric as preflight_fabric
from verl_hpc.runtime.preflight import limits as preflight_limits
from verl_hpc.runtime.session import Session

GIB = 2**30
HOST_BYTES = 512 * GIB
INFINIBAND = {"leonardo_booster", "juwels_booster", "marenostrum5_acc", "roihu_gpu", "alex_a100"}
"""The others have Slingshot."""
UP = Fabric(("mlx5_0",), ("mlx5_0",), ("mlx5_0",))


@dataclass
class Node:
    """What is true of a node."""

    name: str
    is_amd: bool
    num_gpus: int
    cores: int
    """Cores that are asked for each rank."""
    root: Path
    """Its nvidia-smi, and the files of its drivers."""
    infiniband: Fabric
    slingshot: bool
    network: str
    """The network that NCCL reports."""
    model: str = "NVIDIA H100"
    torch: str = "2.13.0+cu130"
    cuda: str | None = "13.0"
    hip: str | None = None
    driver: str | None = "580.95.05"
    seen: int = 0
    """GPUs that torch counts."""
    complaint: str = ""
    """Error message of torch where it counts no GPU."""
    product: float = 16.0
    """Product of a row and a column of sixteen ones on the first GPU."""
    limits: dict[str, float] = field(default_factory=dict)
    ahead_s: float = 0.0
    written: dict[str, float | str] = field(default_factory=dict)
    """GB/s by the name of a directory, or why it cannot be written."""
    bound: int | None = None
    """Cores of a rank, if not those asked for."""
    first_near: int = 0
    """The first core near the first GPU."""
    pair_speed: float = 100.0
    """GB/s of an all-reduce between two nodes, and below it over all of them."""
    speed: float = 100.0

    def install(self) -> None:
        """Write the files that say what GPUs there are."""
        self.seen = self.num_gpus
        for index in range(self.num_gpus):
            bus, first = f"0000:{index + 1:02x}:00.0", index * self.cores + self.first_near
            place = self.root / ("amdgpu" if self.is_amd else "pci") / bus
            self.write(place / "local_cpulist", f"{first}-{first + self.cores - 1}")
            if self.is_amd:
                self.write(place / "mem_info_vram_used", "0")
                self.write(place / "mem_info_vram_total", str(64 * GIB))
                self.write(place / "hwmon/hwmon0/temp1_input", "41000")
                self.write(place / "ras/umc_err_count", "ue: 0\nce: 7")
        if not self.is_amd:
            rows = [
                f"{index}, 41, 0, 4, 81559, GPU-{index}, 00000000:{index + 1:02x}:00.0"
                for index in range(self.num_gpus)
            ]
            self.smi("cat <<END\n" + "\n".join(rows) + "\nEND")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def smi(self, script: str) -> None:
        """Another nvidia-smi."""
        program(self.root / "bin/nvidia-smi", script)

    def first(self, name: str, text: str, column: int, cell: str) -> None:
        """Another value of the first GPU: a file of AMD's driver, or a column of nvidia-smi."""
        if self.is_amd:
            self.write(self.root / "amdgpu/0000:01:00.0" / name, text)
            return
        lines = (self.root / "bin/nvidia-smi").read_text().splitlines()
        cells = lines[2].split(", ")
        cells[column] = cell
        self.smi("\n".join([lines[1], ", ".join(cells), *lines[3:]]))


_HERE = threading.local()


def here() -> Node:
    """The node of this thread's rank."""
    return cast(Node, _HERE.node)


class _Channel:
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


class Meeting:
    """Where ranks lay down what the others read."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class ThreadControl(Control):
    """A control plane of threads."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(cast(Any, _Channel(rank, len(meeting.values))))
        self._meeting_place = meeting

    def allgather(self, value: Any) -> list[Any]:
        return self._meeting_place.exchange(self.rank, value)

    def merge(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        first, *others = self.allgather(value)
        for other in others:
            first = combine(first, other)
        return first

    def barrier(self) -> None:
        self.allgather(None)


class Cuda:
    """torch.cuda of the node that asks."""

    def is_available(self) -> bool:
        return here().seen > 0

    def device_count(self) -> int:
        return here().seen

    def init(self) -> None:
        raise RuntimeError(here().complaint or "No CUDA GPUs are available")

    def get_device_properties(self, which: int | str) -> SimpleNamespace:
        index = str(which).removeprefix("cuda:")
        # AMD's identifiers are others than those of its driver's files.
        uuid = f"amd-{index}" if here().is_amd else f"GPU-{index}"
        return SimpleNamespace(name=here().model, uuid=uuid, total_memory=80 * GIB)

    def mem_get_info(self, which: object) -> tuple[int, int]:
        return 78 * GIB, 80 * GIB


class _Torch:
    """torch of the node that asks; its tensors are arrays, and its devices their names."""

    cuda, int64, device = Cuda(), np.int64, str

    def __init__(self, distributed: SimpleNamespace) -> None:
        self.distributed = distributed

    @property
    def __version__(self) -> str:
        return here().torch

    @property
    def version(self) -> SimpleNamespace:
        return SimpleNamespace(cuda=here().cuda, hip=here().hip)

    def ones(self, *size: int, device: str) -> np.ndarray:
        return np.ones(size) * (here().product / 16.0) ** 0.5

    def empty(self, size: int, dtype: type, device: str) -> np.ndarray:
        return np.empty(size, dtype)

    def tensor(self, values: list[int], dtype: type, device: str) -> np.ndarray:
        return np.array(values, dtype)


def stand_in(monkeypatch: Any, meeting: Meeting) -> None:
    """Put what these nodes answer in the place of what this machine does."""
    patch = monkeypatch.setattr

    def gather(heard: np.ndarray, mine: np.ndarray) -> None:
        heard[:] = np.concatenate(meeting.exchange(int(mine[0]), mine))

    distributed = SimpleNamespace(
        all_gather_into_tensor=gather,
        new_group=lambda *_, **__: "pair",
        destroy_process_group=lambda _: None,
    )
    fake = _Torch(distributed)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    patch(world, "socket", SimpleNamespace(gethostname=lambda: here().name))
    patch(environment, "node_name", lambda: here().name)
    patch(examine, "read_binding", _binding)
    patch(devices, "most_bytes", lambda: HOST_BYTES)
    for module in (device, devices):
        patch(module, "driver_version", lambda: here().driver)
    for place in (limits, preflight_limits):
        patch(place, "limit_of", lambda name: here().limits.get(name, float("inf")))
    patch(limits, "machine_bytes", lambda: HOST_BYTES)
    patch(fabric.wanted_infiniband, "__defaults__", (lambda: here().infiniband,))
    patch(preflight_fabric, "has_slingshot", lambda: here().slingshot)
    patch(node, "write_speed", lambda directory, rank: here().written.get(directory.name, 2.0))
    patch(node, "time", SimpleNamespace(time=lambda: 1e9 + here().ahead_s))

    def all_reduce_s(session: Session, group: str | None) -> float:
        # Two nodes are all of them.
        speed = here().speed if group is None else here().pair_speed
        return network._bus_gb_s(session, len(meeting.values), 1.0) / speed

    patch(network, "_all_reduce_s", all_reduce_s)


def _binding(world: world.World) -> Binding:
    count = here().cores if here().bound is None else here().bound
    first = world.local_rank * here().cores
    cores = frozenset(range(first, first + cast(int, count)))
    asked = here().cores, world.local_size * here().cores
    return Binding(world.rank, here().name, world.device, cores, *asked)


def run_ranks(nodes: list[Node], meeting: Meeting, work: Callable[[Session, Node], Any]) -> Any:
    """What rank 0 returns of `work`, which all ranks run; each joins as `session` has it."""
    size = len(meeting.values)

    def rank(number: int) -> Any:
        _HERE.node = nodes[number * len(nodes) // size]
        try:
            control = ThreadControl(number, meeting)
            place = world.read_world(control, "a stand-in", "any")
            infiniband = None
            if place.device != "cpu":
                infiniband = session.choose_network(place, control, refuse=False)
            quiet = cast(Any, SimpleNamespace(enter=lambda _: None, library="a stand-in"))
            joined = Session(place, control, quiet, quiet, quiet, infiniband)
            return work(joined, here())
        except threading.BrokenBarrierError:
            return None
        except BaseException as error:
            meeting.barrier.abort()
            return error

    with ThreadPoolExecutor(size) as pool:
        returned = list(pool.map(rank, range(size)))
    for one in returned:
        if isinstance(one, BaseException):
            raise one
    return returned[0]


def read_gpus(monkeypatch: Any, one: Node) -> list[gpu.Gpu] | str:
    """Read the GPUs of a node as the doctor does before it joins the other ranks."""
    monkeypatch.setenv("PATH", f"{one.root / 'bin'}:/usr/bin:/bin")

    def near_cores(bus: str, _: object = None) -> frozenset[int] | None:
        file = one.root / ("amdgpu" if one.is_amd else "pci") / bus[4:] / "local_cpulist"
        return frozenset(parse_spans(file.read_text())) if file.is_file() else None

    monkeypatch.setattr(gpu, "near_cores", near_cores)
    return gpu.read_gpus(one.root / "amdgpu")
