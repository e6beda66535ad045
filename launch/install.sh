#!/usr/bin/env bash
# Make a virtual environment with the pinned CPU packages and this package in it (cpu), add what
# developers need (dev), or install what the virtual cluster needs (slurm; as root).
# usage: launch/install.sh VENV cpu|dev|slurm
#   PYTHON   interpreter to make it with, 3.11 (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?directory of the virtual environment} what=${2:?cpu, dev or slurm}
python=${PYTHON:-python3}
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps)

if [ "$what" = slurm ]; then
    PATH=$PATH:/usr/sbin:/sbin
    if command -v slurmctld >/dev/null && command -v slurmd >/dev/null &&
        command -v munged >/dev/null && command -v bwrap >/dev/null; then
        exit
    elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "install.sh: install slurmctld, slurmd, munge and bubblewrap; on Debian, as root:" \
            "apt-get install slurm-wlm munge bubblewrap" >&2
        exit 1
    fi
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends slurm-wlm munge bubblewrap
    exit
fi
if [ "$what" = dev ]; then
    "${pip[@]}" -r requirements/dev.txt
    exit
fi
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "install.sh: $("$python" --version) is not Python 3.11, which megatron-core and vLLM are" \
        "pinned for; set PYTHON" >&2
    exit 1
}
if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian splits it off
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
fi
"$python" -m venv --clear "$venv"
"${pip[@]}" pip==26.3 # old ones take minutes over the lists of a package's files
# Two at once, and byte code on every core at the end: one pip keeps one core busy.
"${pip[@]}" --no-compile -r <(awk 'NR % 2' requirements/cpu.txt) &
"${pip[@]}" --no-compile -r <(awk 'NR % 2 == 0' requirements/cpu.txt) || {
    wait
    exit 1
}
wait $!
# Packages carry files that are not for this Python; pip says nothing of them either.
"$venv/bin/python" -W ignore -m compileall -qq -j 0 "$venv/lib" || true
PYTHONWARNINGS=ignore "${pip[@]}" --no-build-isolation -e .
"$venv/bin/python" - <<'PY'
import torch
from mpi4py import MPI

library = MPI.Get_library_version().splitlines()[0].strip()
print(f"installed: torch {torch.__version__}, {library}")
PY
