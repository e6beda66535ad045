"""Scripts that start verl, as bash runs them in bubblewrap."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.migration.scripts import needs_bubblewrap, outcome, read
from tests.unit.programs import program
from verl_hpc.errors import ConfigError
from verl_hpc.migration import script as module
from verl_hpc.migration.script import command_words, words_of

pytestmark = needs_bubblewrap

SCRIPT = r"""#!/usr/bin/env bash
set -xeuo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}   # a comment
files="['$HOME/a.parquet', '$HOME/b.parquet']"
DATA=(
    data.train_files="$files"
    # data.seed=1
    data.max_prompt_length=$((1024 * 2))
)
ulimit -n 999999999
mkdir -p /nowhere
if [ "${NODES:=2}" = 2 ] && [ ! -d /nowhere ]; then
    DATA+=(data.shuffle=False)
fi
RUN --config-name=ppo_trainer \
    "${DATA[@]}" \
    actor_rollout_ref.model.path=$MODEL 'a=${b.c}' \
    trainer.experiment_name="$(basename "${MODEL,,}" 8b)_$(date +%Y)" \
    trainer.nnodes=$NODES $@ 2>&1 | tee log
"""


def test_a_script(tmp_path):
    words = [
        "--config-name=ppo_trainer",
        "data.train_files=['/home/me/a.parquet', '/home/me/b.parquet']",
        "data.max_prompt_length=2048",
        "data.shuffle=False",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "a=${b.c}",
        time.strftime("trainer.experiment_name=qwen3-_%Y"),
        "trainer.nnodes=2",
    ]
    assert read(tmp_path, SCRIPT) == words
    words[4] = "actor_rollout_ref.model.path=other"
    words[6] = time.strftime("trainer.experiment_name=other_%Y")
    assert read(tmp_path, SCRIPT, MODEL="other") == words


WAYS_TO_START = [
    "RUN a=1",
    "CUDA_VISIBLE_DEVICES=0 X=1 RUN a=1",
    "nohup env X=1 RUN a=1 > /nowhere/log 2>&1 < /dev/null & wait",
    "RUN > log a=1 2>> /nowhere/log",
    "exec RUN a=1",
    "exec /opt/venv/bin/RUN a=1",
    "torchrun --nproc_per_node 8 -m verl.trainer.main_ppo a=1",
    "ray job submit --runtime-env=x -- RUN a=1",
    "srun -n 1 apptainer run --nv image RUN a=1",
    "L=(/opt/bin/torchrun --nnodes=1); ${L[@]} -m verl.trainer.main_ppo a=1",
    "L=(RUN); ${L[@]} a=1",
    'run() { $1 "${@:2}"; }; run RUN a=1',
    "mkdir x && RUN a=1 || exit 1",
    "{ RUN a=1; } | tee log",
    "if false; then RUN a=2; else for x in 1; do RUN a=$x; done; fi",
    "set -e; export PATH=/usr/bin:$PATH; RUN a=1",
    "exec > >(tee log) 2>&1; echo hello; RUN a=1",
    'module load cuda; eval "$(conda shell.bash hook)"; conda activate x; RUN a=1',
    "cat > x <<'END'\nRUN a=2\nEND\nRUN a=1",
    "echo RUN a=2\necho 'RUN' a=3\npkill -f verl.trainer.main_ppo\nL=(RUN a=2)\nRUN a=1",
    "until nvidia-smi > /dev/null; do sleep 1; done\nRUN a=1\nRUN a=2",
    "while :; do nvidia-smi >> log; sleep 5; done & RUN a=1; kill $!",
    "if python3 -c 'import torch_npu' 2> /dev/null; then A=2; fi\nRUN a=${A:-1}",
]


def test_ways_in_which_a_script_starts_verl(tmp_path):
    ends = {text: outcome(tmp_path, text) for text in WAYS_TO_START}
    assert {text: end for text, end in ends.items() if end != "a=1"} == {}


ERRORS = {
    "#\nRUN a=$NOWHERE": "line 2: $NOWHERE is not set; give it: python -m verl_hpc migrate "
    "NOWHERE=... run.sh",
    "A=$(echo $NOWHERE)\nRUN a=$A": "line 1: $NOWHERE is not set",
    "RUN a=$1": "line 1: $1 is an argument of the script; write its value there",
    "RUN a=${A:?tell me}": "line 1: A: tell me",
    "#\nA=$(hostname)\nRUN a=$A": "line 2: hostname is not run, and what it prints is asked for; "
    "give it: python -m verl_hpc migrate A=... run.sh",
    "N=$(nvidia-smi -L | wc -l)\nRUN n=$((N * 2))": "line 1: wc is not run",
    "echo nothing": "starts none of verl.trainer.main_ppo, verl_hpc.trainer.main_ppo",
    "ray start\nif ! ray status; then RUN; fi": "these programs were not run: ray (line 1)",
    "torchrun -m verl.trainer.sft_trainer x=1": "but verl.trainer.sft_trainer; its counterpart is",
    "python3 -m verl.trainer.main_generation_server x=1": "docs/evaluation.md",
    "exit 0\nRUN a=1": "starts none of",
    "set -e\nfalse\nRUN a=1": "starts none of",
    'A=1\nRUN "a=1': "unexpected EOF while looking for matching",
    "RUN a=(1)": "syntax error near unexpected token",
    "#\nRUN a=1 \\ \n  b=2": "line 2: a blank behind a backslash ends the command",
    "RUN a=1 \\\n  # b=2 \\\n  c=3": "line 1: a comment ends the command",
    "RUN a=1 \\\n\n  b.c=2": "line 3: b.c=2 is no part of the command above it",
    "RUN a=1\n  +b.c=1 \\\n d=1": "+b.c=1 is no part of the command above it",
}


def test_what_cannot_be_known_is_an_error_with_its_line(tmp_path):
    ends = {text: outcome(tmp_path, text) for text in ERRORS}
    wrong = {text: end for text, end in ends.items() if ERRORS[text] not in end}
    assert wrong == {}
    assert all(end.startswith(f"error: {tmp_path}/run.sh: ") for end in ends.values())


def test_a_comment_behind_the_whole_command_ends_nothing(tmp_path):
    assert read(tmp_path, "RUN a=1 \\\n  # b=2 \\\n\necho done") == ["a=1"]


def test_a_variable_that_is_given_stays(tmp_path):
    for text in (
        "A=$(hostname)",
        "A=1",
        "unset A",
        "read A",
        "for A in 1; do echo; done",
        ": ${A:=2}",
        "f() { A=5; }; f",
        "A=1 | cat; export A=2",
    ):
        words = outcome(tmp_path, f'{text}\nB=${{A:-2}}x\nRUN "a=$A" "b=$B"', {"A": "3 '"})
        assert words == "a=3 ' | b=3 'x", text
    with pytest.raises(ConfigError, match=r"AA=\.\.\. is given, but the script has no such"):
        read(tmp_path, "RUN a=$A", {"A": "3", "AA": "3"})


def test_a_sourced_file(tmp_path, monkeypatch, caplog):
    """It is found as bash finds it, and beside the script as well."""
    site = tmp_path / "site.sh"
    site.write_text("A=${SITE:-1}\n")
    assert read(tmp_path, "source site.sh\nRUN a=$A") == ["a=1"]
    assert read(tmp_path, "source site.sh\nRUN a=$A", {"SITE": "2"}) == ["a=2"]
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, ". ./site.sh\nRUN a=$A b=$PWD") == ["a=1", f"b={tmp_path}"]
    site.write_text("B=1\nRUN b=$A".replace("RUN", "python3 -m verl.trainer.main_ppo"))
    assert "site.sh, line 2: $A is not set" in outcome(tmp_path, "source site.sh")
    caplog.clear()
    assert read(tmp_path, "source other.sh\nRUN a=${A:-1}") == ["a=1"]
    assert "run.sh: line 1: other.sh: No such file or directory" in caplog.text


def test_what_was_not_run_is_told(tmp_path, caplog):
    text = "mkdir x\nray stop\nif nvidia-smi; then A=1; fi\nRUN a=$A\nRUN a=2\nray stop"
    assert read(tmp_path, text) == ["a=1"]
    assert "these programs were not run: ray (line 2), nvidia-smi (line 3)" in caplog.text
    assert "starts verl 2 times; these are the words of the first" in caplog.text


def test_a_script_changes_nothing_and_knows_no_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "echo x > here; rm run.sh; A=$(echo x < /dev/tcp/127.0.0.1/22 && echo net)\nRUN a=$A"
    assert read(tmp_path, text) == ["a="]
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    assert read(tmp_path, "module load x; RUN a=1", **{"BASH_FUNC_module%%": "() { exit; }"})


def test_time_memory_and_words_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 3)
    assert read(tmp_path, "RUN a=1\nkill -STOP $$") == ["a=1"]
    monkeypatch.setattr(module, "_SECONDS", 0.1)
    assert "did not end within 0.1 s" in outcome(tmp_path, "while :; do :; done\nRUN a=1")
    monkeypatch.undo()
    doubled = "A=aaaaaaaa\nfor i in {1..%d}; do A=$A$A; done\nRUN a=$A"
    assert "words are more than 2097152 characters" in outcome(tmp_path, doubled % 20)
    monkeypatch.setattr(module, "_MOST_MEMORY", 2**27)
    assert "cannot allocate" in outcome(tmp_path, doubled % 40)


def test_without_bubblewrap_a_script_is_refused_with_what_to_do(tmp_path, monkeypatch):
    command = "give the command itself: python -m verl_hpc migrate python3 -m verl.trainer.main_ppo"
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else which(name))
    said = outcome(tmp_path, "RUN a=1")
    assert "bubblewrap is not installed here: install the package bubblewrap" in said
    assert command in said
    told = "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"
    fails = {"bwrap": str(program(tmp_path / "bwrap", told))}
    monkeypatch.setattr(shutil, "which", lambda name: fails.get(name) or which(name))
    said = outcome(tmp_path, "RUN a=1")
    assert "does not start here (bwrap: No permissions to create new namespace)" in said
    assert "ask for unprivileged user namespaces" in said and command in said


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "run.sh").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "run.sh", tmp_path / "none.sh", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            words_of(path, {})


def test_words_of_a_command():
    words = ["python3", "-m", "verl.trainer.main_ppo", "a=1", "2>&1"]
    assert command_words(words) == ["a=1"]
    assert command_words(["a=1"]) == ["a=1"]


WORDS = r"""a='x y'$A b="$A  $B" ${C-~/x} "${L[@]}" ${L[@]:1} p${L[*]//a/b} $'\t'x "" {x,y}z *.no"""


def test_words_are_those_that_bash_passes(tmp_path):
    """Compared with a function in the place of python3."""
    text = f"A='a  b'; B=; L=('a b' '' c)\nRUN {WORDS} $((1 << 2))"
    shown = "python3() { shift 2; printf '%s\\0' \"$@\"; }\n"
    Path(tmp_path, "shown.sh").write_text(shown + text.replace("RUN", "python3 -m x"))
    said = subprocess.run(
        ["bash", "shown.sh"], capture_output=True, text=True, cwd=tmp_path, env={"HOME": "/home/me"}
    )
    assert read(tmp_path, text) == said.stdout.split("\0")[:-1]
