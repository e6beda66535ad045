#!/usr/bin/env bash
# Make the squashfs image that pyxis runs, with Enroot alone: no Docker, no root.
# usage: containers/enroot.sh IMAGE.sqsh     (from the root of a checkout)
# The same recipe as verl_hpc.def: requirements/gpu.txt pins every version; slurm/h100_infiniband_pyxis.yaml
# runs it. ENROOT_DATA_PATH must have 64 GB free.
set -euo pipefail
cd "$(dirname "$0")/.."
image=${1:?file to write, such as /scratch/images/verl_hpc.sqsh}
base=docker://nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04
name=verl_hpc-build-$$
scratch=$(mktemp -d)

cleanup() {
    rm -rf "$scratch"
    enroot remove --force "$name" >/dev/null 2>&1 || true
}
trap cleanup EXIT

if [ -e "$image" ]; then
    echo "enroot.sh: $image is there already; remove it, or choose another name" >&2
    exit 1
fi
command -v enroot >/dev/null || {
    echo "enroot.sh: enroot is not on PATH; run this where pyxis jobs run" >&2
    exit 1
}

enroot import --output "$scratch/base.sqsh" "$base"
enroot create --name "$name" "$scratch/base.sqsh"
rm "$scratch/base.sqsh"
# /etc/environment of the image is what Enroot and pyxis give every command.
enroot start --root --rw --mount "$PWD/containers:/recipe" --mount "$PWD/requirements:/requirements" \
    "$name" bash -c '
    set -eu
    LOCK=/requirements/gpu.txt bash /recipe/install.sh
    bash /recipe/check.sh
    echo "PATH=/opt/verl_hpc/bin:/opt/mpich/bin:/usr/local/cuda/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        >>/etc/environment'
enroot export --output "$image.part" "$name"
mv "$image.part" "$image"
echo "$image"
