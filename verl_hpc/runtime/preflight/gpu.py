"""Health of a node's GPUs: NVIDIA's by nvidia-smi, AMD's by the kernel. Not yet run on a GPU node.

Must be called before MPI is started: MPI libraries do not survive a fork with every fabric.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.spans import parse_spans, spans
from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown
from verl_hpc.runtime.binding import Binding

_FIELDS = (
    "index",
    "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
    "memory.used",
    "memory.total",
    "uuid",
    "pci.bus_id",
)
_PCI = Path("/sys/bus/pci/devices")
_AMD = Path("/sys/bus/pci/drivers/amdgpu")
_HOTTEST_C = 88
"""Hopper and Ampere slow down from here."""
_MOST_USED = 0.05
"""Share of a GPU's memory that may be in use before the job has started."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Gpu:
    """One GPU; a number that the driver does not tell is None."""

    index: int
    temperature_c: int | None
    uncorrected_errors: int | None
    memory_used: float | None
    """Share of the memory that is in use."""
    uuid: str
    near_cores: frozenset[int] | None = None
    """Cores of its memory domain; None where the kernel does not tell."""


def read_gpus(amd: Path = _AMD) -> list[Gpu] | str:
    """The node's GPUs; none without nvidia-smi and AMD's driver; why not, if nvidia-smi fails."""
    if shutil.which("nvidia-smi") is None:
        devices = sorted(path.parent for path in amd.glob("*/mem_info_vram_total"))
        return [_read_amd(index, device) for index, device in enumerate(devices)]
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {_TIMEOUT_S:.0f} s"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return f"nvidia-smi: {lines[-1] if lines else f'exit status {done.returncode}'}"
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> list[Gpu]:
    """Rows of `nvidia-smi --query-gpu`, without header and units."""
    gpus = []
    for line in text.strip().splitlines():
        *numbers, uuid, bus = (word.strip() for word in line.split(","))
        index, temperature, errors, used, total = map(_number, numbers)
        share = None if used is None or not total else used / total
        gpus.append(Gpu(index or 0, temperature, errors, share, uuid, near_cores(bus)))
    return gpus


def _read_amd(index: int, device: Path) -> Gpu:
    """A GPU by the files of its driver (Linux kernel documentation, gpu/amdgpu)."""
    used, total = (_file_number(device / f"mem_info_vram_{name}") for name in ("used", "total"))
    milli = [_file_number(path) for path in sorted(device.glob("hwmon/hwmon*/temp*_input"))]
    hottest = max((value for value in milli if value is not None), default=None)
    told = [_uncorrected(path) for path in sorted(device.glob("ras/*_err_count"))]
    errors = [number for number in told if number is not None]
    share = None if used is None or not total else used / total
    return Gpu(
        index,
        None if hottest is None else hottest // 1000,
        sum(errors) if errors else None,
        share,
        _text(device / "unique_id"),
        near_cores(f"0000{device.name}", device.parent),
    )


def _uncorrected(path: Path) -> int | None:
    """Uncorrected errors of a block of the GPU, whose file has lines `ue: 0` and `ce: 1`."""
    match = re.search(r"ue:\s*(\d+)", _text(path))
    return int(match[1]) if match else None


def _file_number(path: Path) -> int | None:
    return _number(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # such as a value that the GPU does not have
        return ""


def near_cores(bus: str, devices: Path = _PCI) -> frozenset[int] | None:
    """Cores near the device at `00000000:17:00.0`, as the driver writes it."""
    domain, _, rest = bus.lower().partition(":")
    file = devices / f"{domain[-4:]}:{rest}" / "local_cpulist"
    return frozenset(parse_spans(file.read_text())) if file.is_file() else None


def judge_nearness(
    bindings: Sequence[Binding], near: Sequence[frozenset[int] | None]
) -> list[Verdict]:
    """Whether ranks run on cores near their GPUs; both are by rank. Empty if unknown."""
    known = [(b, cores) for b, cores in zip(bindings, near, strict=True) if cores]
    far = [(b, cores) for b, cores in known if not b.cores & cores]
    if not known:
        return []
    if not far:
        return [ok("gpu cores", "every rank may run on cores near its GPU")]
    text = listed(
        [
            f"rank {b.rank} on {b.host} has {spans(b.cores, ',')}, not {spans(n, ',')}"
            for b, n in far
        ],
        4,
    )
    todo = "list masks by GPU in srun_args: --cpu-bind=mask_cpu:..."
    return [fails("gpu cores", f"far from their GPUs: {text}", todo)]


def judge_gpus(
    by_node: dict[str, list[Gpu] | str], wanted: int | None, on_gpus: bool = False
) -> Verdict:
    """The GPUs of all nodes.

    Args:
        by_node: GPUs, or why they could not be read, by node.
        wanted: GPUs that a node should have; None if no profile says.
        on_gpus: whether torch computes on GPUs; their health is all that is missing then.
    """
    if not any(by_node.values()):
        if on_gpus:
            text = "ranks compute on GPUs, but nvidia-smi is not there to tell their health"
            return unknown("gpus", text, "does the image have it?")
        if wanted:
            seen = "neither nvidia-smi nor AMD's driver on any node"
            return fails("gpus", seen, f"gpus_per_node is {wanted}: does the container bring them?")
        return ok("gpus", "none: ranks compute on cores")
    complaints = {node: _complaints(gpus, wanted) for node, gpus in by_node.items()}
    bad = {node: texts for node, texts in sorted(complaints.items()) if texts}
    if bad:
        text = listed([f"{node}: {', '.join(texts)}" for node, texts in bad.items()])
        todo = "leave them out, and tell the administrators"
        return fails("gpus", text, todo, bad)
    known = [gpu for gpus in by_node.values() for gpu in gpus if isinstance(gpu, Gpu)]
    if any(gpu.uncorrected_errors is None for gpu in known):
        return unknown("gpus", f"{_summary(known)}; the driver does not tell memory errors")
    return ok("gpus", f"{_summary(known)}, no uncorrected memory errors, memory free")


def _complaints(gpus: Sequence[Gpu] | str, wanted: int | None) -> list[str]:
    if isinstance(gpus, str):
        return [gpus]
    texts = []
    if wanted is not None and len(gpus) < wanted:
        texts.append(f"{len(gpus)} GPUs of {wanted}")
    for gpu in gpus:
        if gpu.uncorrected_errors:
            texts.append(f"GPU {gpu.index} has {gpu.uncorrected_errors} uncorrected memory errors")
        if gpu.temperature_c is not None and gpu.temperature_c >= _HOTTEST_C:
            texts.append(f"GPU {gpu.index} is at {gpu.temperature_c} C")
        if gpu.memory_used is not None and gpu.memory_used > _MOST_USED:
            texts.append(f"GPU {gpu.index} has {gpu.memory_used:.0%} of its memory in use")
    return texts


def _summary(gpus: Sequence[Gpu]) -> str:
    hottest = max((gpu.temperature_c or 0 for gpu in gpus), default=0)
    return f"{len(gpus)} GPUs, at most {hottest} C"


def _number(word: str) -> int | None:
    """A cell; the driver writes [N/A] and the like for what it does not know."""
    return int(word) if word.isdecimal() else None
