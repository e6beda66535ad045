"""Sizes and speeds of GPUs and nodes, each with its source.

Speeds are peaks of data sheets, for dense matrix products (data sheets of today print twice that,
for sparse ones) and each way of a link. The time model decides which fraction of a peak is reached.
Memory is what the driver gives a process on an otherwise empty GPU (`torch.cuda.mem_get_info`),
less than the data sheet says: the error correction and the driver keep some. The memory of CUDA and
NCCL is counted by the memory ledger.

Each figure has one source: a measurement of `doctor --nodes`, else the site profile, else the kind
of GPU (`cluster.hardware.hardware_of`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from verl_hpc.errors import ConfigError
from verl_hpc.layout.link_model import Links
from verl_hpc.section import PositiveFinite, Section

GIB = 2**30
CPU = "cpu"
"""The kind of ranks that compute on cores."""
NETWORK_GB_S = Links().network_gb_s
"""Default network bandwidth of a GPU: what NCCL gets of 400 Gb/s, one adapter for each GPU."""
MESSAGE_SHARE, COPY_SHARE = 4 / 9, 0.6
"""Share of NVLink that one message between two GPUs reaches, as NCCL has few channels for one pair,
and share of memory bandwidth that packing reaches. Assumptions, which no GPU has confirmed;
`layout.link_model.Links` has an H100's by default."""
OWN_FIGURES = "give the figures of another GPU as gpu_figures (docs/site_profile.md)"


@dataclass(frozen=True)
class GpuKind:
    """One kind of device; GB are 10^9 bytes."""

    name: str
    memory_gib: float
    """Memory available to a process, its CUDA context included; 0 stands for a share of the
    node's."""
    tflops: Mapping[str, float]
    """Peak of dense matrix products by element type, in 10^12 operations a second. float32 is
    without TF32, which PyTorch leaves off by default."""
    hbm_gb_s: float
    """Bandwidth of the device's memory, in GB/s."""
    nvlink_gb_s: float
    """Bandwidth to all other GPUs of a node together, each way, in GB/s; 0 without NVLink or its
    like."""
    pcie_gb_s: float
    """Bandwidth to host memory, each way, in GB/s: PCIe, or NVLink-C2C."""
    source: str
    """Source of the figures."""
    driver_name: str = ""
    """Words of the name that the driver gives it; empty is the name before its dash."""

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)

    @property
    def is_gpu(self) -> bool:
        return self.memory_gib > 0

    def peak_tflops(self, dtype: str) -> float:
        """Peak of products in an element type; that of bfloat16 where the kind lacks it."""
        return self.tflops.get(dtype, self.tflops["bfloat16"])

    def is_called(self, device: str) -> bool:
        """Whether the driver's name of a device, or cpu, may be that of this kind."""
        ours, theirs = map(_words, (self.driver_name or self.name.partition("-")[0], device))
        return ours <= theirs


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def flops(bfloat16: float, float32: float, float8: float | None = None) -> dict[str, float]:
    """Return peaks by element type; that of float16 is bfloat16's."""
    known = {"bfloat16": bfloat16, "float16": bfloat16, "float32": float32}
    return known if float8 is None else known | {"float8": float8}


_TABLE: Sequence[tuple[Any, ...]] = (
    # GiB; Tflop/s of bfloat16, float32 and float8; GB/s of HBM, NVLink and PCIe.
    ("A100-40", 39.50, (312.0, 19.5), (1555.0, 300.0, 32.0),
     "NVIDIA A100 data sheet (SXM, 40 GB); memory: TianheWu/CoSeR issue 10"),
    ("A100-80", 79.14, (312.0, 19.5), (2039.0, 300.0, 32.0),
     "NVIDIA A100 data sheet (SXM, 80 GB); memory: murong-xu/Control-GIC issue 6"),
    ("H100-80", 79.11, (989.4, 66.9, 1978.9), (3350.0, 450.0, 64.0),
     "NVIDIA H100 data sheet (SXM); memory: vllm-project/vllm issue 27508"),
    ("H100-94", 93.1, (835.0, 60.0, 1671.0), (3900.0, 300.0, 64.0),
     ("NVIDIA H100 data sheet (NVL, pairs joined by NVLink); memory: 95,830 MiB of nvidia-smi "
      "less 0.5 GiB, as other Hopper GPUs keep")),
    ("H100-96", 94.88, (989.4, 66.9, 1978.9), (4000.0, 450.0, 450.0),
     ("NVIDIA GH200 data sheet (96 GB HBM3; host memory over NVLink-C2C); memory: "
      "Lightning-AI/litgpt issue 1892"), "GH200"),
    ("H200", 139.8, (989.4, 66.9, 1978.9), (4800.0, 450.0, 64.0),
     "NVIDIA H200 data sheet (SXM, 141 GB); memory: 143,771 MiB of nvidia-smi less 0.6 GiB"),
    ("H800", 79.11, (989.4, 66.9, 1978.9), (3350.0, 200.0, 64.0),
     "an H100 whose NVLink is cut to 400 GB/s (DeepSeek-V3, arXiv 2412.19437, section 3.1)"),
    ("H20", 95.00, (148.0, 44.0, 296.0), (4000.0, 450.0, 64.0),
     ("figures that NVIDIA's partners print, since there is no public data sheet; memory: "
      "modelscope/DiffSynth-Studio issue 1238")),
    ("B200", 178.3, (2250.0, 75.0, 4500.0), (7700.0, 900.0, 64.0),
     ("NVIDIA DGX B200 data sheet (180 GB a GPU, 8 GPUs); memory: 183,359 MiB of nvidia-smi "
      "less 0.7 GiB")),
    ("GB200", 184.0, (2500.0, 80.0, 5000.0), (8000.0, 900.0, 225.0),
     ("NVIDIA GB200 NVL72 data sheet (186 GB a GPU; a Grace's NVLink-C2C serves two); memory: "
      "its 186 GB are 189,471 MiB of nvidia-smi, less 1 GiB")),
    ("MI300X", 191.5, (1307.4, 163.4, 2614.9), (5300.0, 448.0, 64.0),
     "AMD Instinct MI300X data sheet (192 GB are GiB; 7 links of 64 GB/s each way)"),
    ("L40S", 44.42, (362.0, 91.6, 733.0), (864.0, 0.0, 32.0),
     "NVIDIA L40S data sheet (48 GB, no NVLink); memory: stepfun-ai/Step-Video-T2V issue 8"),
    (CPU, 0.0, (0.1, 0.1), (10.0, 0.0, 10.0),
     ("one core of the machine of benchmarks/results/2026-11-products-cpu.md (0.19 Tflop/s of "
      "products on two); memory is a round figure: plan calibrate fits the rest")),
)  # fmt: skip
KINDS: Mapping[str, GpuKind] = {
    name: GpuKind(name, memory, flops(*tflops), *speeds, *source_and_driver_name)
    for name, memory, tflops, speeds, *source_and_driver_name in _TABLE
}
"""Kinds by name."""

NAMES = tuple(KINDS)


def gpu_kind(name: str) -> GpuKind:
    """Look up a kind by its name in a site profile, in any case.

    Raises:
        ConfigError: there is no such kind.
    """
    chosen = {known.lower(): kind for known, kind in KINDS.items()}.get(name.lower())
    if chosen is None:
        names = ", ".join(kind.name for kind in KINDS.values() if kind.is_gpu)
        raise ConfigError(f"gpu = {name!r}: no such kind; choose one of {names}, or {OWN_FIGURES}")
    return chosen


class LinkFigures(Section):
    """Figures of links and memory given by a site; 1 GB is 10^9 bytes, null is not given."""

    nvlink_gb_s: PositiveFinite | None = None
    """Bandwidth from a GPU to the others of its node, each way, in GB/s; null takes that of the
    kind of GPU."""
    network_gb_s: PositiveFinite | None = None
    """Per GPU, each way, in GB/s: a node's share of the network by its GPUs; null takes 45, what
    NCCL gets of 400 Gb/s for each GPU, and says so."""
    memory_gb_s: PositiveFinite | None = None
    """Bytes that a GPU's memory reads and writes, together, in GB/s; null is that of the kind."""
    message_us: PositiveFinite = Links().message_us
    """Time that a message takes however small it is, in microseconds."""


@dataclass(frozen=True)
class Hardware:
    """The nodes that a run is planned for."""

    kind: GpuKind
    ranks_per_node: int
    given: LinkFigures = field(default_factory=LinkFigures)
    """Figures of the site or of measurements, used instead of the kind's."""
    host_bytes: int | None = None
    """Memory of a node that a job can have; None where it is not known, and nothing is refused."""
    measured_device_bytes: int | None = None
    """Device memory measured by `doctor --nodes`, used instead of the kind's."""
    assumptions: tuple[str, ...] = ()
    """Sources of the figures, as text."""

    @property
    def device_bytes(self) -> int | None:
        """Memory of one rank's device: on a GPU its own, on cores a share of the node's memory."""
        if self.measured_device_bytes is not None:
            return self.measured_device_bytes
        return self.kind.memory_bytes if self.kind.is_gpu else self.host_bytes_per_rank

    @property
    def host_bytes_per_rank(self) -> int | None:
        return None if self.host_bytes is None else self.host_bytes // self.ranks_per_node

    @property
    def nvlink_gb_s(self) -> float:
        """Bandwidth from a GPU to the others of its node, each way; that of PCIe without NVLink or
        its like."""
        return self.given.nvlink_gb_s or self.kind.nvlink_gb_s or self.kind.pcie_gb_s

    @property
    def network_gb_s(self) -> float:
        """Per rank, each way; by default, that of cores is as fast as their memory."""
        unknown = NETWORK_GB_S if self.kind.is_gpu else self.kind.pcie_gb_s
        return self.given.network_gb_s or unknown

    @property
    def memory_gb_s(self) -> float:
        """Bandwidth of a device's memory, reads and writes together."""
        return self.given.memory_gb_s or self.kind.hbm_gb_s

    @cached_property
    def links(self) -> Links:
        """Speeds that messages of a transfer reach."""
        return Links(
            nvlink_gb_s=MESSAGE_SHARE * self.nvlink_gb_s,
            network_gb_s=self.network_gb_s,
            memory_gb_s=COPY_SHARE * self.memory_gb_s,
            message_us=self.given.message_us,
        )
