#!/usr/bin/env bash
# Everything that an image has, pinned, on Ubuntu 24.04 with CUDA's compilers: the one recipe that
# verl_hpc.def, enroot.sh and Containerfile share. Runs as root inside the image; takes about an hour,
# most of it Transformer Engine and Apex. verl_hpc itself is not in it: jobs run a copy of the checkout.
#   GPU                   nvidia, or amd: on an image that has torch and vLLM for ROCm already, which
#                         stay; Transformer Engine and Apex are left out, and PyTorch's layers compute
#   MAX_JOBS              compilers at a time (default: one per core)
#   TORCH_CUDA_ARCH_LIST  GPUs to compile for (default: A100, H100, B200; on aarch64 GH200, GB200)
# On aarch64 pip must find torch's wheel with CUDA; check.sh fails where it took the one without.
set -euo pipefail

MPICH=4.3.2
MPI4PY=4.1.2
TORCH=2.13.0
VLLM=0.32.0
MEGATRON_CORE=0.16.1
TRANSFORMER_ENGINE=2.11.0 # the newest that this megatron-core declares
APEX=26.09 # a tag of NVIDIA's repository; PyPI's `apex` is another project
H5PY=3.16.0

export DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
gpu=${GPU:-nvidia}
case "$gpu-$(uname -m)" in
nvidia-x86_64) kinds="8.0 9.0 10.0" ;;
nvidia-aarch64) kinds="9.0 10.0" ;;
amd-x86_64) kinds="" ;;
*)
    echo "install.sh: GPU=$gpu on $(uname -m): nvidia on x86_64 and aarch64, amd on x86_64" >&2
    exit 2
    ;;
esac
export MAX_JOBS=${MAX_JOBS:-$(nproc)} TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$kinds}
venv=/opt/verl_hpc
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { printf '== %s\n' "$*"; }

# ibverbs-providers has the drivers of InfiniBand adapters (libmlx5). libibverbs1 only recommends it,
# and without it NCCL finds no adapter and takes TCP.
say "compilers and libraries"
apt-get update -qq
apt-get install -y -qq --no-install-recommends build-essential ca-certificates curl git \
    ibverbs-providers ibverbs-utils libibverbs1 librdmacm1 libnuma1 ninja-build python3-dev \
    python3-venv
rm -rf /var/lib/apt/lists/*
own=()
[ "$gpu" = nvidia ] || own=(--system-site-packages)
python3 -m venv "${own[@]}" "$venv"
pip=("$venv/bin/pip" install --quiet)
"${pip[@]}" "setuptools>=78,<81" wheel packaging ninja cmake pybind11 "cython>=3"

# Ubuntu's own MPICH is built for PMIx only and starts one world per rank under srun --mpi=pmi2.
# MPI carries no weights here, so that TCP and shared memory do; a site that wants its own fabric
# mounts its MPICH-compatible libmpi.so.12 over this one.
say "MPICH $MPICH"
curl -fsSL "https://www.mpich.org/static/downloads/$MPICH/mpich-$MPICH.tar.gz" |
    tar -xz -C "$scratch"
(
    cd "$scratch/mpich-$MPICH"
    ./configure --prefix=/opt/mpich --with-device=ch4:ofi --with-pm=hydra --disable-fortran \
        --enable-fast=O2 >"$scratch/mpich.log"
    make -s -j "$MAX_JOBS" >>"$scratch/mpich.log"
    make -s install >>"$scratch/mpich.log"
)
echo /opt/mpich/lib >/etc/ld.so.conf.d/mpich.conf
ldconfig

say "torch $TORCH, vLLM $VLLM, megatron-core $MEGATRON_CORE"
if [ "$gpu" = nvidia ]; then
    "${pip[@]}" "torch==$TORCH" "vllm==$VLLM" "megatron-core==$MEGATRON_CORE"
else
    # Nothing may replace the image's torch, whose version has a suffix of ROCm.
    "$venv/bin/pip" list --format=freeze | grep -E '^(torch|vllm)==' >"$scratch/kept.txt"
    "${pip[@]}" --constraint "$scratch/kept.txt" "megatron-core==$MEGATRON_CORE"
fi

say "mpi4py $MPI4PY against /opt/mpich, h5py $H5PY"
MPI4PY_BUILD_MPICC=/opt/mpich/bin/mpicc "${pip[@]}" --no-binary=mpi4py "mpi4py==$MPI4PY"
"${pip[@]}" "h5py==$H5PY"

if [ "$gpu" = nvidia ]; then
    say "Transformer Engine $TRANSFORMER_ENGINE"
    NVTE_FRAMEWORK=pytorch "${pip[@]}" --no-build-isolation \
        "transformer_engine[core-cu13,pytorch]==$TRANSFORMER_ENGINE"

    say "NVIDIA Apex $APEX"
    git clone --quiet --depth 1 --recurse-submodules --shallow-submodules --branch "$APEX" \
        https://github.com/NVIDIA/apex "$scratch/apex"
    APEX_CPP_EXT=1 APEX_CUDA_EXT=1 "${pip[@]}" --no-build-isolation "$scratch/apex"
fi

say "what the package needs besides"
"${pip[@]}" "fsspec>=2024.6" "httpx>=0.28,<1" "math-verify>=0.9,<1" "matplotlib>=3.9,<4" "psutil>=6" "pyarrow>=18" "pydantic>=2.10,<3" \
    "PyYAML>=6,<7" "reasoning-gym>=0.1.25,<0.2" "rich>=13,<16" "safetensors>=0.5" \
    "submitit>=1.5.4,<2" "tensorboard>=2.18,<3" "xxhash>=3.4"
