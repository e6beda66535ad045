"""A script of verl's, moved here: each of Ray's job commands by the verb that replaces it."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.slurm.runs import PATIENCE_S, Run, cancel_all, set_pause, write_run
from verl_hpc.testing.slurm_lab.processes import wait_for

SCRIPT = """#!/bin/bash
set -x
N=${{NNODES:-2}}
python3 -m verl.trainer.main_ppo model_engine=megatron \\
    algorithm.adv_estimator=grpo \\
    data.train_files={rows} \\
    data.train_batch_size=4 \\
    data.max_prompt_length=120 \\
    data.max_response_length=6 \\
    actor_rollout_ref.model.path={model} \\
    actor_rollout_ref.actor.megatron.dtype=float32 \\
    actor_rollout_ref.actor.optim.lr=1e-3 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=2 \\
    actor_rollout_ref.rollout.name=hf \\
    actor_rollout_ref.rollout.n=2 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    reward.custom_reward_function.path={reward} \\
    trainer.total_training_steps=200 \\
    trainer.save_freq=-1 \\
    trainer.logger=[console] \\
    trainer.default_local_dir={run} \\
    trainer.n_gpus_per_node=1 \\
    trainer.nnodes=$N "$@"
"""


@pytest.fixture
def verb(verl_hpc):
    """What a verb printed, which did what it was asked."""

    def call(*words):
        done = verl_hpc(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.fixture
def moved(lab, model, tmp_path, verb):
    """The run that the script becomes, submitted by our command for `ray job submit`."""
    write_run(tmp_path, model)
    set_pause(tmp_path, 0.5)
    files = {"rows": "problems.jsonl", "reward": "reward.py", "run": "run"}
    paths = {"model": model} | {name: tmp_path / file for name, file in files.items()}
    script = tmp_path / "run_grpo.sh"
    script.write_text(SCRIPT.format(**paths))
    config = tmp_path / "moved.yaml"
    config.write_text(verb("migrate", script, "+verl_hpc.metrics.report=false"))
    run = Run(lab, config)
    yield run.submit()
    cancel_all(lab)


def follow(lab, run, seen):
    """`logs --follow` until a line is there."""
    command = [sys.executable, "-m", "verl_hpc", "logs", str(run.directory), "--follow"]
    said = run.config.with_name("followed")
    with said.open("w") as file:
        process = subprocess.Popen(command, stdout=file, env=os.environ | lab.environment)
    try:
        is_there = wait_for(lambda: re.search(seen, said.read_text(), re.M), PATIENCE_S, 0.1)
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert is_there, said.read_text()


def test_each_of_rays_job_commands_has_a_verb(lab, moved, verb):
    moved.wait_for_step(1)

    # ray job list
    (row,) = [line for line in verb("list", moved.directory.parent).splitlines() if " rl " in line]
    assert row.split()[:3] == ["run", "running", "rl"]

    # ray job status
    status = json.loads(verb("status", moved.directory, "--json"))
    assert status["state"] == "running"

    # ray job logs, on and on, of all, and of one rank
    step = r"^n0 0: .* step +{}/200 "
    follow(lab, moved, step.format(moved.steps_done + 2))
    assert re.search(step.format(1), verb("logs", moved.directory), re.M)
    lines = verb("logs", moved.directory, "--rank", 1).splitlines()
    assert lines and all(line.startswith("n1 1: ") for line in lines)

    # ray stack
    assert verb("hang", moved.directory)

    # ray job stop: it saves first
    assert "saves and leaves for good" in verb("stop", moved.directory)
    assert (moved.wait_for_end(), moved.checkpoints) == ("COMPLETED", [moved.steps_done])
    assert moved.restarts == 0
    status = json.loads(verb("status", moved.directory, "--json"))
    assert (status["state"], status["step"]) == ("stopped", moved.steps_done)
