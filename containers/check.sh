#!/usr/bin/env bash
# Whether an image has what it should: drivers of InfiniBand, files that every user can read, versions,
# which libmpi mpi4py found, and that compiled libraries load. Where there is no driver, as in most
# builds, CUDA's stub stands in for libcuda, to which they are linked. Where there is one
# (`apptainer test --nv verl_hpc.sif` on a node with a GPU), a kernel of each library runs as well.
# usage: check.sh [ROOT]     (ROOT: where the image's file system is, instead of /)
set -euo pipefail
root=${1:-} gpu=${GPU:-nvidia}
python=$root/opt/verl_hpc/bin/python

fail() {
    echo "check.sh: $*" >&2
    exit 1
}

compgen -G "$root/usr/lib/*/libibverbs/libmlx5-rdmav*.so" ||
    fail "libibverbs has no driver for InfiniBand adapters: install ibverbs-providers"
ours=("$root/opt/verl_hpc" "$root/opt/mpich")
[ "$gpu" = amd ] || ours+=("$root/opt/python")
hidden=$(find "${ours[@]}" \( ! -perm -o=r -o -type d ! -perm -o=x \) -print -quit)
[ -z "$hidden" ] || fail "$hidden is not readable by every user: build with umask 022"

export DRIVER=none
if "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
    DRIVER=nvidia
elif [ "$gpu" = nvidia ]; then
    stub=$root/usr/local/cuda/lib64/stubs/libcuda.so
    [ -e "$stub" ] || fail "neither a driver nor $stub is here: take a base image with CUDA's compilers"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    ln -s "$stub" "$scratch/libcuda.so.1"
    export LD_LIBRARY_PATH=$scratch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

"$python" - <<'PY'
import os
import sys
from importlib.metadata import version

import torch  # first: the kernels below are linked to its libraries
import h5py
import megatron.core
import vllm
from mpi4py import MPI

nvidia = os.environ.get("GPU", "nvidia") == "nvidia"
library = MPI.Get_library_version().splitlines()[0].strip()
assert "MPICH" in library or "CRAY" in library, f"mpi4py runs on {library}"
with open("/proc/self/maps") as maps:
    pmix = "libpmix" in maps.read()
assert pmix or "CRAY" in library, f"{library} is built without PMIx"
names = ["torch", "vllm", "megatron-core", "mpi4py", "h5py"]
if nvidia:
    import amp_C  # NVIDIA Apex's kernels; PyPI's `apex` has none
    import fused_weight_gradient_mlp_cuda
    import transformer_engine.pytorch  # loads its library, which an undefined symbol would end
    import vllm._C_stable_libtorch  # its kernels, compiled for this torch
    import vllm._moe_C_stable_libtorch
    import vllm.cumem_allocator  # gives memory back while training

    assert sys.version_info[:2] == (3, 11), f"Python {sys.version}; the tests run 3.11"
    assert str(torch.version.cuda).startswith("13."), f"torch is for CUDA {torch.version.cuda}"
    names += ["transformer_engine", "apex"]
else:
    import vllm._C

    assert torch.version.hip, "torch is not built for ROCm"

usable = torch.cuda.is_available()
if os.environ["DRIVER"] == "nvidia":
    assert usable, "NVIDIA's driver is here, and torch finds no GPU that it can use"
if usable:
    ones = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    assert (ones @ ones == 64).all(), "torch multiplies wrongly on the GPU"
    scaled = torch.empty_like(ones)
    torch.ops._C.rms_norm(scaled, 2 * ones, ones[0], 1e-6)
    assert torch.allclose(scaled, ones), "vLLM normalizes wrongly on the GPU"
    if nvidia:
        layer = transformer_engine.pytorch.Linear(64, 64, params_dtype=torch.bfloat16)
        assert layer(ones).isfinite().all(), "Transformer Engine multiplies wrongly on the GPU"
    torch.cuda.synchronize()
ran = f"kernels ran on {torch.cuda.get_device_name()}" if usable else "no GPU: no kernel ran"
print(library, *(f"{name} {version(name)}" for name in names), ran, sep="\n")
PY
