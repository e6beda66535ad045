#!/usr/bin/env bash
# Everything that an image has, pinned, on Ubuntu 24.04 with CUDA's compilers: the one recipe that
# verl_hpc.def, enroot.sh and Containerfile share. Runs as root inside the image; takes about an hour,
# most of it Transformer Engine and Apex. verl_hpc itself is not in it: jobs run a copy of the checkout.
#   GPU                   nvidia, or amd: on an image that has torch and vLLM for ROCm already, which
#                         stay; Transformer Engine and Apex are left out, and PyTorch's layers compute
#   MAX_JOBS              compilers at a time (default: one per core)
#   TORCH_CUDA_ARCH_LIST  GPUs to compile for (default: A100, H100, B200; on aarch64 GH200, GB200)
#   LOCK                  versions of all Python packages (default: gpu.txt beside this script)
# On aarch64 pip must find torch's wheel with CUDA; check.sh fails where it took the one without.
# Not proven: no image has been built by us, neither Transformer Engine nor Apex compiled.
set -euo pipefail
umask 022 # so that every user can read the image

PYTHON=3.11.18 # of the version that the tests run; AMD's image keeps its own
UV=0.13.9      # knows builds of this Python for both architectures, and their hashes
MPICH=5.0.2    # as the tests: the first series that tells PMI2 from PMIx when it starts
TRANSFORMER_ENGINE=2.11.0 # the newest that this megatron-core declares
# A commit of NVIDIA's repository, which stopped making tags in 2025; PyPI's `apex` is another project.
APEX=6424da3b4faa6c8f062da4a48c424fff3f02d42d
lock=${LOCK:-$(dirname "$0")/gpu.txt}

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
[ -r "$lock" ] || { echo "install.sh: no $lock: copy requirements/gpu.txt there" >&2; exit 2; }
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
    ibverbs-providers ibverbs-utils libibverbs1 libpmix-dev librdmacm1 libnuma1 ninja-build \
    python3-dev python3-venv
rm -rf /var/lib/apt/lists/*
if [ "$gpu" = nvidia ]; then
    say "Python $PYTHON"
    python3 -m venv "$scratch/uv"
    "$scratch/uv/bin/pip" install --quiet "uv==$UV"
    export UV_PYTHON_INSTALL_DIR=/opt/python
    "$scratch/uv/bin/uv" python install --no-bin "$PYTHON"
    "$("$scratch/uv/bin/uv" python find --managed-python "$PYTHON")" -m venv "$venv"
else
    python3 -m venv --system-site-packages "$venv"
fi
pip=("$venv/bin/pip" install --quiet)

if [ "$gpu" = nvidia ]; then
    # Before the hour that the rest takes: a commit that is gone ends the build here.
    say "source of NVIDIA Apex $APEX"
    git init --quiet "$scratch/apex"
    git -C "$scratch/apex" fetch --quiet --depth 1 https://github.com/NVIDIA/apex "$APEX"
    git -C "$scratch/apex" checkout --quiet FETCH_HEAD
    git -C "$scratch/apex" submodule --quiet update --init --recursive --depth 1
fi

# Ubuntu's own MPICH is built for PMIx only and starts one world per rank under srun --mpi=pmi2. This
# one has its own PMI2 (--with-pmilib=mpich) and Ubuntu's PMIx, and takes the one that srun speaks.
# MPI carries no weights here, so that TCP and shared memory do; a site that wants its own fabric
# mounts its MPICH-compatible libmpi.so.12 over this one.
say "MPICH $MPICH"
curl -fsSL "https://www.mpich.org/static/downloads/$MPICH/mpich-$MPICH.tar.gz" |
    tar -xz -C "$scratch"
(
    cd "$scratch/mpich-$MPICH"
    ./configure --prefix=/opt/mpich --with-device=ch4:ofi --with-pm=hydra --with-pmilib=mpich \
        --with-pmix="/usr/lib/$(uname -m)-linux-gnu/pmix2" --disable-fortran --enable-fast=O2 \
        >"$scratch/mpich.log"
    make -s -j "$MAX_JOBS" >>"$scratch/mpich.log"
    make -s install >>"$scratch/mpich.log"
)
echo /opt/mpich/lib >/etc/ld.so.conf.d/mpich.conf
ldconfig

say "Python packages of $lock"
kept=$scratch/lock.txt
cp "$lock" "$kept"
if [ "$gpu" = amd ]; then
    # The image's torch and vLLM stay, and what they came with.
    "$venv/bin/pip" list --format=freeze | cut -d= -f1 >"$scratch/there.txt"
    grep -viE '^(nvidia|cuda|flashinfer|triton)' "$lock" |
        grep -viFf <(sed 's/$/==/' "$scratch/there.txt") >"$kept"
fi
MPI4PY_BUILD_MPICC=/opt/mpich/bin/mpicc "${pip[@]}" --no-deps --no-binary=mpi4py \
    --requirement "$kept"

if [ "$gpu" = nvidia ]; then
    # The compilers of the base image, not those of NVIDIA's wheels in the lock.
    export CUDA_HOME=/usr/local/cuda
    # Its core is a wheel; only the part for PyTorch is compiled. What they need is in the lock.
    say "Transformer Engine $TRANSFORMER_ENGINE"
    NVTE_FRAMEWORK=pytorch NVTE_PYTORCH_FORCE_BUILD=TRUE "${pip[@]}" --no-build-isolation --no-deps \
        "transformer_engine==$TRANSFORMER_ENGINE" "transformer_engine_cu13==$TRANSFORMER_ENGINE" \
        "transformer_engine_torch==$TRANSFORMER_ENGINE"
    say "NVIDIA Apex"
    APEX_CPP_EXT=1 APEX_CUDA_EXT=1 "${pip[@]}" --no-build-isolation --no-deps "$scratch/apex"
fi
