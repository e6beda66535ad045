"""What each rank computes on: a GPU where the job was promised one, else the cores.

A rank that lacks its promised GPU would train on the cores of an expensive node, or leave the
others waiting in their first collective on GPUs. So the job ends before any work, and says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.errors import ClusterError
from verl_hpc.runs.contract import GPUS_PER_NODE
from verl_hpc.runs.verdict import listed
from verl_hpc.runtime import limits

MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that show a process some of its node's GPUs, or none."""
_COUNTS = (GPUS_PER_NODE, "SLURM_GPUS_ON_NODE")
"""Variables that promise a number of GPUs."""
_LISTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", *MASKS)
"""Variables that promise the GPUs that they list."""
_NO_GPU = ("", "-1", "NoDevFiles", "none", "void")
_NVIDIA = Path("/proc/driver/nvidia/version")
_AMD = Path("/sys/module/amdgpu")
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
"""NVIDIA's oldest driver for each CUDA major version (CUDA release notes, "CUDA Toolkit and
Corresponding Driver Versions")."""
_LOG = logging.getLogger("verl_hpc.runtime")


@dataclass(frozen=True)
class Device:
    """What one rank has found on its node."""

    host: str
    name: str = "cpu"
    """"cpu", or "cuda:i" with i the index among the GPUs that this process sees."""
    model: str | None = None
    """The GPU's name by its driver."""
    uuid: str | None = None
    trouble: str | None = None
    """Why a promised GPU cannot be used."""


def nodes_are_without_gpus() -> bool:
    """Whether the site profile says `gpus_per_node: 0`.

    Slurm promises the GPUs of a node to a job that has the node for itself, whoever asked for them.
    """
    return os.environ.get(GPUS_PER_NODE) == "0"


def promise_of_gpus(environ: Mapping[str, str] = os.environ) -> str | None:
    """The variable, with its value, that promises GPUs to this process; None if none does."""
    for name in _COUNTS:
        if environ.get(name, "0").isdecimal() and int(environ.get(name, "0")):
            return f"{name}={environ[name]}"
    for name in _LISTS:
        if environ.get(name, "") not in _NO_GPU:
            return f"{name}={environ[name]}"
    return None


def find_device(
    host: str, local_rank: int, local_size: int, environ: Mapping[str, str] = os.environ
) -> Device:
    """Look for this rank's GPU and compute on it; the cores where no GPU was promised.

    Eight ranks on two nodes of four GPUs::

        rank         0 1 2 3  4 5 6 7
        local_rank   0 1 2 3  0 1 2 3
        cuda:        0 1 2 3  0 1 2 3
    """
    import torch

    if not torch.cuda.is_available():
        promise = promise_of_gpus(environ)
        trouble = None
        if promise is not None:
            why = f"{_why_none(torch)}{_masks(environ)}{limits.space_note()}"
            trouble = f"{promise} promises GPUs, but {why}"
        return Device(host, trouble=trouble)
    count = torch.cuda.device_count()
    # A launcher that narrows CUDA_VISIBLE_DEVICES leaves each rank one device, its own.
    index = local_rank if count > 1 else 0
    if index >= count:
        return Device(
            host,
            trouble=f"{local_size} ranks and {count} GPUs; leave the node out "
            f"(--directive=--exclude={host}) if it lacks one, or start at most {count} ranks there",
        )
    name = f"cuda:{index}"
    try:
        properties: Any = torch.cuda.get_device_properties(index)
        ones = torch.ones(16, 16, device=name)
        computes = (ones @ ones).sum().item() == 16.0**3
    except RuntimeError as error:
        why = f"{_first_line(error)}{limits.space_note()}"
        return Device(host, trouble=f"{name} cannot be used: {why}")
    model, uuid = str(properties.name), str(properties.uuid)
    if not computes:
        return Device(host, trouble=f"{name} ({model}, {uuid}) multiplies matrices wrongly")
    return Device(host, name, model, uuid)


def check_devices(found: Sequence[Device]) -> None:
    """Refuse ranks that lack a promised GPU, share one, or compute on cores beside others' GPUs.

    Args:
        found: of each rank, by rank.

    Raises:
        ClusterError: naming the nodes and the ranks.
    """
    _check_promises(found)
    _check_kinds(found)
    _check_owners(found)
    models = sorted({device.model for device in found if device.model})
    if len(models) > 1:
        _LOG.warning("the job has GPUs of several kinds, and the slowest decides: %s", models)


def gpu_bytes() -> int:
    """Memory of all GPUs that this process sees; 0 without one."""
    import torch

    if not torch.cuda.is_available():
        return 0
    indices = range(torch.cuda.device_count())
    return sum(int(torch.cuda.get_device_properties(i).total_memory) for i in indices)


def driver_version() -> str | None:
    """Version of the kernel's GPU driver, such as 580.95.05; None without a driver.

    AMD's driver has no version where it is part of the kernel: its name is returned then.
    """
    if _NVIDIA.is_file():
        words = _NVIDIA.read_text().splitlines()[0].split()
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025
        return next((w for w in words if w[:1].isdigit() and "." in w), words[-1])
    if _AMD.is_dir():
        version = _AMD / "version"
        return version.read_text().strip() if version.is_file() else "amdgpu"
    return None


def _why_none(torch: Any) -> str:
    """Why torch sees no GPU here, and what to do."""
    version = f"torch {torch.__version__}"
    driver = driver_version()
    has = "no GPU driver is seen here" if driver is None else f"the driver is {driver}"
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"{version} is built without CUDA and ROCm ({has}); install the packages of "
            "requirements/gpu.txt, or take an image that has them"
        )
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    if driver is None:
        return (
            f"{version} for {built} finds no GPU driver; does the node have GPUs, and does the "
            "container bring in their driver (container.gpu, apptainer --nv or --rocm)?"
        )
    least = _LEAST_DRIVER.get((torch.version.cuda or "").partition(".")[0])
    needs = f", which needs driver {least} or newer" if least else ""
    try:
        torch.cuda.init()
    except RuntimeError as error:
        said = _first_line(error)
    else:
        said = "it counts no GPU"
    return f"{version} for {built}{needs}, cannot use driver {driver}: {said}"


def _masks(environ: Mapping[str, str]) -> str:
    """Variables that each hide GPUs; two of them may hide all, since the second counts what the
    first leaves."""
    masks = [f"{name}={environ[name]}" for name in MASKS if environ.get(name)]
    return f" (hidden by {', '.join(masks)}?)" if len(masks) > 1 else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(". ")


def _check_promises(found: Sequence[Device]) -> None:
    troubles: dict[tuple[str, str], list[int]] = {}
    for rank, device in enumerate(found):
        if device.trouble is not None:
            troubles.setdefault((device.host, device.trouble), []).append(rank)
    if not troubles:
        return
    texts = [f"{host} ({_ranks(ranks)}): {why}" for (host, why), ranks in troubles.items()]
    raise ClusterError(f"{listed(texts, 4, '; ')}. {_ON_CORES}")


def _check_kinds(found: Sequence[Device]) -> None:
    on_cores = [rank for rank, device in enumerate(found) if device.name == "cpu"]
    if not on_cores or len(on_cores) == len(found):
        return
    first = next(device for device in found if device.name != "cpu")
    hosts = listed(sorted({found[rank].host for rank in on_cores}))
    raise ClusterError(
        f"{hosts} ({_ranks(on_cores)}) has no GPU, and {first.host} has {first.model}; keep "
        f"nodes without GPUs out (--directive=--exclude=NODES). {_ON_CORES}"
    )


def _check_owners(found: Sequence[Device]) -> None:
    owner_of: dict[tuple[str, str], int] = {}
    for rank, device in enumerate(found):
        if device.uuid is None:
            continue
        first = owner_of.setdefault((device.host, device.uuid), rank)
        if first != rank:
            raise ClusterError(
                f"ranks {first} and {rank} on {device.host} would share GPU {device.uuid}; start "
                "one rank per GPU (srun --ntasks-per-node=G --gpus-per-node=G), each seeing all "
                "GPUs"
            )


_ON_CORES = "With runtime.device=cpu all ranks compute on their cores instead"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks])}"
