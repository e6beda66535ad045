#!/usr/bin/env bash
# The first run, start to end, on four CPU ranks: warm a tiny decoder up on reversing letters,
# improve it with reinforcement learning, stop half-way and resume, export it for transformers.
# usage: launch/quickstart.sh [grpo|ppo|verl|sft] [seed]
#   verl      is grpo, started by verl's command line and its keys
#   sft       ends after the warm-up
#   PYTHON    interpreter of the environment that has verl_hpc (default: python)
#   MPIEXEC   starts the ranks, as it has to where torch is built for GPUs (default: the ranks are
#             forks of one process, which imports the libraries once)
#   RUNS      where the run directories go (default: a new directory below runs/, which the link
#             runs/quickstart-latest, and with it configs/run/examples/quickstart*.yaml, then leads to)
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=${1:-grpo} seed=${2:-0}
python=${PYTHON:-python}
ranks=4
train=("$python" -m verl_hpc train)
main_ppo=("$python" -m verl_hpc.trainer.main_ppo) # starts its ranks itself
if [ -n "${MPIEXEC:-}" ]; then
    train=("$MPIEXEC" -n "$ranks" "${train[@]}")
    main_ppo=("$MPIEXEC" -n "$ranks" "${main_ppo[@]}")
else
    train+=(--ranks "$ranks")
fi
runs=${RUNS:-runs/quickstart-$(date +%Y%m%d-%H%M%S)}
if [ -z "${RUNS:-}" ]; then
    mkdir -p "$runs"
    ln -sfn "$(basename "$runs")" runs/quickstart-latest
fi
config=configs/run/examples/quickstart.yaml
[ "$recipe" = ppo ] && config=configs/run/examples/quickstart_ppo.yaml

say() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf '$ %s\n' "$*"; "$@"; }
train() { # CONFIG DATA MODEL [SETTING...]
    run "${train[@]}" --config "$1" "data.train.paths=[$runs/data/$2]" \
        "data.evaluation.paths=[$runs/data/evaluation.jsonl]" "model.path=$runs/$3" \
        "directory=$runs" "seed=$seed" "${@:4}"
}

verl() { # [SETTING...]: quickstart.yaml in verl's keys, and what its defaults are not
    run "${main_ppo[@]}" model_engine=megatron trainer.n_gpus_per_node="$ranks" \
        "data.train_files=$runs/data/rl.jsonl" "data.val_files=$runs/data/evaluation.jsonl" \
        data.train_batch_size=64 data.max_prompt_length=10 data.max_response_length=8 \
        "actor_rollout_ref.model.path=$runs/quickstart_sft/checkpoints/latest" \
        actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
        actor_rollout_ref.actor.megatron.sequence_parallel=False \
        actor_rollout_ref.actor.megatron.dtype=float32 \
        actor_rollout_ref.actor.optim.lr=1e-4 actor_rollout_ref.actor.optim.weight_decay=0 \
        "actor_rollout_ref.actor.optim.betas=[0.9,0.95]" \
        actor_rollout_ref.actor.ppo_mini_batch_size=32 \
        actor_rollout_ref.actor.clip_ratio_high=0.28 algorithm.adv_estimator=grpo \
        actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
        actor_rollout_ref.rollout.temperature=0.6 \
        actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
        "trainer.logger=[console]" trainer.test_freq=10 trainer.save_freq=40 \
        trainer.total_training_steps=80 "trainer.default_local_dir=$runs/quickstart" \
        verl_hpc.reward.function=exact_match verl_hpc.rollout.kv_cache_gib=0.05 \
        "verl_hpc.seed=$seed" "$@"
}

say "1 of 6: problems, and a decoder of 1.0 M parameters with random weights"
run "$python" -m verl_hpc.testing.letters --out "$runs/data" --seed "$seed"
run head -n 3 "$runs/data/rl.jsonl"
run "$python" -m verl_hpc.testing.tiny --out "$runs/model" --seed "$seed" \
    --sizes '{"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "max_position_embeddings": 64}'

say "2 of 6: supervised warm-up until three held-out problems in ten are answered right"
train configs/run/examples/quickstart_sft.yaml sft.jsonl model
[ "$recipe" = sft ] && exit

say "3 of 6: the first half of $recipe: training TP2 x DP2, generating TP1 x 4"
rl=(train "$config" rl.jsonl quickstart_sft/checkpoints/latest)
half=steps=40
if [ "$recipe" = verl ]; then rl=(verl) half=trainer.total_training_steps=40; fi
"${rl[@]}" "$half"

say "4 of 6: resume from its checkpoint and run to the end"
"${rl[@]}"

name=$(basename "$config" .yaml)
say "5 of 6: export to a directory that transformers loads"
run "$python" -m verl_hpc export --step "$runs/$name/checkpoints/latest" --out "$runs/exported"
"$python" - "$runs/exported" <<'PY'
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompt = "moon ->"
ids = tokenizer(prompt, return_tensors="pt")
answer = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1]:]
print(prompt, tokenizer.decode(answer, skip_special_tokens=True))
PY

say "6 of 6: what came of it"
run "$python" -m verl_hpc overlap "$runs/quickstart_sft" "$runs/$name"
run "$python" -m verl_hpc report "$runs/$name"

say "and now"
printf '%s\n' \
    "$python -m verl_hpc dashboard $runs    # curves, answers and times in a browser" \
    "make quickstart-real    # a real model, SmolLM2-135M-Instruct, in ten minutes" \
    "less docs/own_run.md    # my model, my data, my reward"
