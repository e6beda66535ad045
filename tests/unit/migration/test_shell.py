"""Scripts that start verl: read, never run."""

import time

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell import command_words, words_of

SCRIPT = r"""#!/usr/bin/env bash
set -xeuo pipefail
# MODEL=commented
MODEL=${MODEL:-Qwen/Qwen3-8B}   # a comment
NODES=${NODES:-2}
name="run_${MODEL}"
tokens=$(((1024 + 2048) * 2))
files="['$HOME/a.parquet', '$HOME/b.parquet']"
DATA=(
    data.train_files="$files"
    data.max_prompt_length=$((1024 * 2))
)
DATA+=(data.shuffle=False)
if [ "$NODES" = 2 ]; then
    DATA=(never)
fi
function helper() {
    MODEL=never
}
python3 -m verl.trainer.main_ppo --config-name=ppo_trainer \
    "${DATA[@]}" \
    actor_rollout_ref.model.path=$MODEL \
    trainer.logger='["console"]' \
    trainer.experiment_name="${NAME:-${name}_x}" \
    trainer.nnodes=$NODES $@ 2>&1 | tee log
"""


def test_a_script(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    assert words_of(file, {"HOME": "/home/me"}) == [
        "--config-name=ppo_trainer",
        "data.train_files=['/home/me/a.parquet', '/home/me/b.parquet']",
        "data.max_prompt_length=2048",
        "data.shuffle=False",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        'trainer.logger=["console"]',
        "trainer.experiment_name=run_Qwen/Qwen3-8B_x",
        "trainer.nnodes=2",
    ]


def test_the_environment_is_over_a_scripts_defaults(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("M=${M:-a}\npython3 -m verl.trainer.main_ppo model=$M\n")
    assert words_of(file, {"M": "b"}) == ["model=b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python3 -m verl.trainer.main_ppo a=$NOWHERE", "NOWHERE is not known"),
        ("X=$(hostname)\npython3 -m verl.trainer.main_ppo a=$X", "runs a program"),
        ("python3 -m verl.trainer.main_ppo a=$(hostname)", "runs a program"),
        ("echo nothing", "starts none of"),
    ],
)
def test_what_cannot_be_known_without_running_it(tmp_path, text, said):
    file = tmp_path / "run.sh"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        words_of(file, {})


def test_names_in_a_sum_need_no_dollar_sign(tmp_path):
    file = tmp_path / "run.sh"
    start = "python3 -m verl.trainer.main_ppo "
    file.write_text(f"p=$((1024 * 2))\nr=512\n{start}a=$(((p + r) * 2)) b=$((p+$r))\n")
    assert words_of(file, {}) == ["a=5120", "b=2560"]
    file.write_text(f"r=512\n{start}a=$((p + r))\n")
    with pytest.raises(ConfigError, match=r"\$p is not known"):
        words_of(file, {})


def test_words_of_a_command():
    words = ["python3", "-m", "verl.trainer.main_ppo", "a=1", "2>&1"]
    assert command_words(words) == ["a=1"]
    assert command_words(["a=1"]) == ["a=1"]


@pytest.mark.parametrize(
    "default", ["x_$(date -R)", '"x_${M:-a}_$(date -R)"', "${M:-$(date)}", '"$(date)"']
)
def test_a_default_that_runs_a_program_is_not_asked_for_where_the_variable_is_set(
    tmp_path, default
):
    file = tmp_path / "run.sh"
    file.write_text(f"NAME=${{NAME:-{default}}}\npython3 -m verl.trainer.main_ppo name=$NAME\n")
    assert words_of(file, {"NAME": "hello"}) == ["name=hello"]
    way = "set it: NAME=... python -m verl_hpc migrate run.sh"
    with pytest.raises(ConfigError, match=rf"\$\(date.*\) runs a program.*{way}"):
        words_of(file, {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun -m verl.trainer.sft_trainer data.x=1", "sft_trainer; .*recipe: sft"),
        ('"${LAUNCH[@]}" -m verl.trainer.main_ppo_sync a=1', "but verl.trainer.main_ppo_sync"),
        ("python3 -m verl.trainer.main_generation_server a=1", "docs/evaluation.md"),
        ("echo", "starts none of verl.trainer.main_ppo, verl_hpc.trainer.main_ppo$"),
    ],
)
def test_another_program_of_verls_is_named(tmp_path, line, said):
    file = tmp_path / "run.sh"
    file.write_text(f"LAUNCH=(python3)\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        words_of(file, {})


def test_a_date_is_that_of_now(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("n=${n:-a_$(date +%Y-%m)}\npython3 -m verl.trainer.main_ppo trainer.name=$n\n")
    assert words_of(file, {}) == [time.strftime("trainer.name=a_%Y-%m")]
