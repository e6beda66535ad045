#!/usr/bin/env bash
# Make a virtual environment with the pinned CPU packages and this package in it.
# usage: launch/install.sh VENV cpu|dev
#   PYTHON   interpreter to make it with, 3.11 (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?directory of the virtual environment} what=${2:?cpu or dev}
python=${PYTHON:-python3}
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps)

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
# torch first and alone: a resolver would bring CUDA packages.
"${pip[@]}" torch==2.13.0
"${pip[@]}" -r requirements/cpu.txt
"${pip[@]}" --no-build-isolation -e .
"$venv/bin/python" - <<'PY'
import torch
from mpi4py import MPI

library = MPI.Get_library_version().splitlines()[0].strip()
print(f"installed: torch {torch.__version__}, {library}")
PY
