#!/usr/bin/env bash
# Whether an image has what it should, without a GPU or an adapter: drivers of InfiniBand, versions,
# and which libmpi mpi4py found.
# usage: check.sh [ROOT]     (ROOT: where the drivers' directories are, instead of /)
set -euo pipefail
compgen -G "${1:-}/usr/lib/*/libibverbs/libmlx5-rdmav*.so" || {
    echo "check.sh: libibverbs has no driver for InfiniBand adapters: install ibverbs-providers" >&2
    exit 1
}
/opt/verl_hpc/bin/python - <<'PY'
from importlib.metadata import version

import os

import torch  # first: the kernels below are linked to its libraries
import h5py
import megatron.core
import vllm
import vllm._C  # its kernels, compiled for this torch
from mpi4py import MPI

library = MPI.Get_library_version().splitlines()[0].strip()
assert "MPICH" in library or "CRAY" in library, f"mpi4py runs on {library}"
names = ["torch", "vllm", "megatron-core", "mpi4py", "h5py"]
if os.environ.get("GPU", "nvidia") == "nvidia":
    import amp_C  # NVIDIA Apex's kernels; PyPI's `apex` has none
    import fused_weight_gradient_mlp_cuda
    import transformer_engine.pytorch  # loads its library, which an undefined symbol would end

    assert str(torch.version.cuda).startswith("13."), f"torch is for CUDA {torch.version.cuda}"
    names += ["transformer_engine", "apex"]
else:
    assert torch.version.hip, "torch is not built for ROCm"
print(library, *(f"{name} {version(name)}" for name in names), sep="\n")
PY
