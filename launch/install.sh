#!/usr/bin/env bash
# Make a virtual environment with the pinned CPU packages and this package in it (cpu), add what
# developers need (dev), or install Debian's packages, as root, for what runs other people's programs
# (bubblewrap), the virtual cluster (slurm) and its accounts (accounts), the tests of the dashboard
# (browser) or those of Prometheus (pushgateway), or Transformer Engine's own Python, without its compiled
# parts, for tests of the CUDA path on machines without a GPU (dry_gpu).
# usage: launch/install.sh VENV cpu|dev|bubblewrap|slurm|accounts|browser|pushgateway|dry_gpu
#   PYTHON   interpreter to make it with, 3.11 to 3.13 (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?directory of the virtual environment} what=${2:?cpu, dev, bubblewrap, slurm, accounts, browser, pushgateway or dry_gpu}
python=${PYTHON:-python3}
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps)

# Debian's packages, as root, unless these commands of theirs are there.
packages() { # "COMMAND ..." "PACKAGE ..."
    local command missing=
    for command in $1; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || missing+=" $command"
    done
    if [ -z "$missing" ]; then
        return
    elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "install.sh: no$missing here; on Debian, as root: apt-get install $2" >&2
        exit 1
    fi
    apt-get update -qq
    # shellcheck disable=SC2086 # several words
    apt-get install -y -qq --no-install-recommends $2
}

if [ "$what" = bubblewrap ]; then
    packages "bwrap unsquashfs" "bubblewrap squashfs-tools"
    exit
fi
if [ "$what" = slurm ]; then
    packages "slurmctld slurmd munged bwrap" "slurm-wlm munge bubblewrap"
    exit
fi
if [ "$what" = accounts ]; then
    packages "slurmdbd mariadbd mariadb-install-db mariadb" \
        "slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core"
    exit
fi
if [ "$what" = browser ]; then
    packages chromium chromium
    exit
fi
if [ "$what" = pushgateway ]; then
    packages prometheus-pushgateway prometheus-pushgateway
    exit
fi
if [ "$what" = dry_gpu ]; then
    # Beside the environment and not in it: there Megatron-core would look for compiled parts.
    pinned=transformer_engine==2.11.0 # as containers/install.sh
    if [ "$(cat "$venv/dry_gpu/.installed" 2>/dev/null)" != "$pinned" ]; then
        packages g++ g++ # the tests compile a device guard
        "${pip[@]}" --upgrade --target "$venv/dry_gpu" "$pinned"
        echo "$pinned" >"$venv/dry_gpu/.installed"
    fi
    exit
fi
if [ "$what" = dev ]; then
    "${pip[@]}" -r requirements/dev.txt -r requirements/track.txt -r requirements/store.txt
    exit
fi
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
    echo "install.sh: $("$python" --version) is not Python 3.11, 3.12 or 3.13, which the pinned" \
        "packages are built for; set PYTHON" >&2
    exit 1
}
if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian splits it off
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
fi
"$python" -m venv --clear "$venv"
"${pip[@]}" pip==26.3 # old ones take minutes over the lists of a package's files
# Two at once, and byte code on every core at the end: one pip keeps one core busy.
"${pip[@]}" --no-compile -r <(awk 'NR % 2' requirements/cpu.txt) &
other=$! # a process substitution, such as the next line's, sets $! as well
"${pip[@]}" --no-compile -r <(awk 'NR % 2 == 0' requirements/cpu.txt) || {
    wait
    exit 1
}
wait "$other"
# Packages carry files that are not for this Python; pip says nothing of them either.
"$venv/bin/python" -W ignore -m compileall -qq -j 0 "$venv/lib" || true
PYTHONWARNINGS=ignore "${pip[@]}" --no-build-isolation -e .
"$venv/bin/python" -c 'import torch' || {
    echo "install.sh: torch does not load; where pip took a build for CUDA, point it at PyTorch's CPU" \
        "wheels (docs/cpu.md) and start again" >&2
    exit 1
}
"$venv/bin/python" - <<'PY'
import torch
from mpi4py import MPI

library = MPI.Get_library_version().splitlines()[0].strip()
print(f"installed: torch {torch.__version__}, {library}")
PY
