#!/usr/bin/env bash
# Whether an image has what it should, without a GPU: versions, and which libmpi mpi4py found.
set -euo pipefail
/opt/verl_hpc/bin/python - <<'PY'
from importlib.metadata import version

import torch  # first: the kernels below are linked to its libraries
import amp_C  # NVIDIA Apex's kernels; PyPI's `apex` has none
import h5py
import megatron.core
from mpi4py import MPI

library = MPI.Get_library_version().splitlines()[0].strip()
assert "MPICH" in library or "CRAY" in library, f"mpi4py runs on {library}"
assert str(torch.version.cuda).startswith("13."), f"torch is built for CUDA {torch.version.cuda}"
names = ("torch", "vllm", "megatron-core", "transformer_engine", "apex", "mpi4py", "h5py")
print(library, *(f"{name} {version(name)}" for name in names), sep="\n")
PY
