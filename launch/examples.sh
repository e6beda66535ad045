#!/usr/bin/env bash
# Examples beyond the quickstart, from nothing to a report, on four CPU ranks.
# usage: launch/examples.sh NAME [seed [SETTING...]]
#   SETTING   of the example's own run, after the warm-up: steps=10
#   calculator   GRPO with a tool: sums that a tiny model cannot do, and a calculator can
#   calculator_agent the same, and the calculator is a program that asks the model for turns
#   grpo_async   the quickstart's GRPO: ranks 2 and 3 generate a step while 0 and 1 train on one
#   grpo_context the quickstart's GRPO: two ranks share every sequence in training
#   hangman      an environment of the package verifiers, unmodified, which is installed in .verifiers
#   lookup_agent an agent of the package openai: the model calls a tool, up to four turns long
#   mini_swe_agent a public coding agent, which is installed in .mini_swe_agent, repairs bugs
#   moe          the quickstart's GRPO of a mixture of experts, divided over ranks in both engines
#   ppo_split    the quickstart's PPO: actor on ranks 0 and 1, critic on 2, reward function on 3
#   safe_rlhf    a recipe of one's own, examples/safe_rlhf.py: reward under a limit on the cost
#   vision       images: say in which cell of a grid a shape is
#   PYTHON    interpreter of the environment that has verl_hpc (default: python)
#   MPIEXEC   starts the ranks, as it has to where torch is built for GPUs (default: the ranks are
#             forks of one process, which imports the libraries once)
#   RUNS      where the run directories go (default: a new directory below runs/, which the link
#             runs/NAME-latest then leads to)
set -euo pipefail
cd "$(dirname "$0")/.."
examples="calculator|calculator_agent|grpo_async|grpo_context|hangman|lookup_agent|mini_swe_agent|moe|ppo_split|safe_rlhf|vision"
name=${1:?usage: launch/examples.sh $examples [seed [SETTING...]]} seed=${2:-0}
settings=("${@:3}")
if [[ "|$examples|" != *"|$name|"* ]]; then
    printf 'no example %s; choose %s\n' "$name" "${examples//|/, }" >&2
    exit 2
fi
python=${PYTHON:-python}
train=("$python" -m verl_hpc train)
if [ -n "${MPIEXEC:-}" ]; then train=("$MPIEXEC" -n 4 "${train[@]}"); else train+=(--ranks 4); fi
runs=${RUNS:-runs/$name-$(date +%Y%m%d-%H%M%S)}
if [ -z "${RUNS:-}" ]; then
    mkdir -p "$runs"
    ln -sfn "$(basename "$runs")" "runs/$name-latest"
fi

say() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf '$ %s\n' "$*"; "$@"; }
train() { # CONFIG DATA MODEL [SETTING...]
    local own=()
    if [ "$1" = "$name" ]; then own=("${settings[@]}"); fi
    run "${train[@]}" --config "configs/run/examples/$1.yaml" \
        "data.train.paths=[$runs/data/$2]" "model.path=$runs/$3" "directory=$runs" "seed=$seed" \
        "${@:4}" "${own[@]}"
}
decoder() { # SIZES [OPTION...]
    run "$python" -m verl_hpc.testing.tiny --out "$runs/model" --seed "$seed" --sizes "$1" "${@:2}"
}

quickstart_decoder='{"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "max_position_embeddings": 64}'
case $name in
calculator | calculator_agent)
    say "1 of 3: sums, a decoder with random weights, and its supervised warm-up"
    run "$python" examples/sums.py --out "$runs/data" --seed "$seed"
    decoder "$quickstart_decoder"
    train calculator_sft sft.jsonl model
    say "2 of 3: reinforcement learning, with a calculator that answers calls"
    train "$name" rl.jsonl calculator_sft/checkpoints/latest \
        "evaluation.sets.sums.source.paths=[$runs/data/evaluation.jsonl]"
    ;;
grpo_async | grpo_context | ppo_split)
    held_out="data.evaluation.paths=[$runs/data/evaluation.jsonl]"
    say "1 of 3: problems, a decoder with random weights, and its supervised warm-up"
    run "$python" -m verl_hpc.testing.letters --out "$runs/data" --seed "$seed"
    decoder "$quickstart_decoder"
    train quickstart_sft sft.jsonl model "$held_out"
    say "2 of 3: $name"
    train "$name" rl.jsonl quickstart_sft/checkpoints/latest "$held_out"
    ;;
hangman | lookup_agent)
    say "1 of 3: data, a decoder with random weights, and its supervised warm-up"
    if [ "$name" = hangman ]; then
        verifiers=.verifiers/bin/python
        if [ ! -e $verifiers ]; then
            run "$python" -m venv .verifiers
            run $verifiers -m pip install --quiet "verifiers[ta]==0.4.0"
        fi
        run $verifiers examples/hangman.py --out "$runs/data" --seed "$seed"
    else
        run "$python" examples/lookups.py --out "$runs/data" --seed "$seed"
    fi
    decoder "${quickstart_decoder/64\}/512\}}" --phrases "$runs/data/phrases.json"
    train "${name%_agent}_sft" sft.jsonl model
    say "2 of 3: $name"
    train "$name" rl.jsonl "${name%_agent}_sft/checkpoints/latest" \
        "evaluation.sets.unseen.source.paths=[$runs/data/evaluation.jsonl]"
    ;;
mini_swe_agent)
    agent=.mini_swe_agent/bin/python
    if [ ! -e $agent ]; then
        say "once: install the agent in .mini_swe_agent"
        run "$python" -m venv .mini_swe_agent
        # Later releases of litellm take a second longer to start.
        run $agent -m pip install --quiet mini-swe-agent==2.4.6 litellm==1.81.16
    fi
    say "1 of 3: repositories, a decoder with random weights, and its supervised warm-up"
    run "$python" examples/bugs/repositories.py --out "$runs/data" --seed "$seed"
    decoder "${quickstart_decoder/64\}/256\}}" --phrases "$runs/data/phrases.json"
    train mini_swe_agent_sft sft.jsonl model
    say "2 of 3: reinforcement learning, with the agent in a sandbox"
    train "$name" rl.jsonl mini_swe_agent_sft/checkpoints/latest \
        "evaluation.sets.unseen.source.paths=[$runs/data/evaluation.jsonl]"
    ;;
moe)
    held_out="data.evaluation.paths=[$runs/data/evaluation.jsonl]"
    say "1 of 3: problems, a mixture of 8 experts with random weights, and its supervised warm-up"
    run "$python" -m verl_hpc.testing.letters --out "$runs/data" --seed "$seed"
    decoder '{"hidden_size": 128, "moe_intermediate_size": 128, "num_experts": 8,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 4, "max_position_embeddings": 64}' \
        --family qwen3_moe
    train quickstart_sft sft.jsonl model "$held_out" \
        parallel.tensor_parallel=1 parallel.expert_parallel=2
    say "2 of 3: moe, experts over pairs of ranks in training and in generation"
    train moe rl.jsonl quickstart_sft/checkpoints/latest "$held_out"
    ;;
safe_rlhf)
    say "1 of 3: rows, models of reward and cost, a decoder, and its supervised warm-up"
    run "$python" examples/letter_values.py --out "$runs/data" --seed "$seed"
    decoder '{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 32}'
    train safe_rlhf_sft sft.jsonl model
    say "2 of 3: reward under a limit on the cost"
    train safe_rlhf rl.jsonl safe_rlhf_sft/checkpoints/latest \
        "roles.reward.path=$runs/data/reward" "roles.cost.path=$runs/data/cost"
    ;;
vision)
    held_out="data.evaluation.paths=[$runs/data/evaluation.jsonl]"
    say "1 of 3: images, a vision-language model with random weights, and its supervised warm-up"
    run "$python" -m verl_hpc.testing.places --out "$runs/data" --seed "$seed"
    run "$python" -m verl_hpc.testing.vision --out "$runs/model" --seed "$seed"
    train vision_sft sft.jsonl model "$held_out"
    say "2 of 3: $name"
    train "$name" rl.jsonl vision_sft/checkpoints/latest "$held_out"
    ;;
esac

say "3 of 3: what came of it"
run "$python" -m verl_hpc report "$runs/$name"
