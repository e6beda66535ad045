#!/usr/bin/env bash
# The first hour on a GPU: every claim of docs/gpu.md that one GPU can settle, as steps with a time
# limit each. After each step DIR/first_hour.md is written anew. Started again with the same DIR it
# leaves finished steps alone and runs the others.
# usage: benchmarks/first_hour.sh [--out DIR] [--wheels DIR] [--only STEPS] [--again STEPS]
#        benchmarks/first_hour.sh --rehearse               tiny shapes on the CPU, without a GPU
#        benchmarks/first_hour.sh --list-wheels few|all    what to carry where no network is
#   PYTHON   interpreter of the environment (default: .venv/bin/python, where there is none python3)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
if [ ! -x "$python" ] && [ -z "${PYTHON:-}" ]; then python=python3; fi
exec "$python" -m benchmarks.first_hour "$@"
