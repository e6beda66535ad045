"""Whole runs that train adapters alone: they improve on problems that they have not been trained
on, and go on after a kill as if nothing had been."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.jobs.launch import differing, trained, write_config
from tests.jobs.test_quickstart import SCRIPT, accuracies
from tests.jobs.test_resume import kill_once, newest
from verl_hpc.checkpoint.read import Step
from verl_hpc.config.load import load_config
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source

CONFIG = Path(__file__).parents[2] / "configs/run/quickstart_lora.yaml"


def test_killed_and_resumed_adapters_are_the_same_to_the_last_bit(tree, tmp_path):
    """PPO has an actor, a critic with a new head, and a reference without adapters."""
    tree |= {"lora": {"rank": 4}, "steps": 10}
    trained(2, write_config(tmp_path / "calm.yaml", tree | {"name": "calm"}))
    config = write_config(tmp_path / "config.yaml", tree | {"name": "killed"})
    root = tmp_path / "killed/checkpoints"
    kill_once(config, root, random.Random(3), aimed=False)
    assert newest(root) < 10, "nothing was left to do"
    trained(2, config)
    assert differing(tmp_path / "calm/checkpoints/latest", root / "latest") == []
    step = Step(root / "latest")
    assert set(step.state.adapters) == {"actor", "critic"}
    assert all(".lora_" in name for name in step.component("actor").tensors)
    assert "value_head.weight" in step.component("critic").tensors


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_adapters_gain_on_problems_that_training_has_not_seen(tmp_path):
    environ = os.environ | {"PYTHON": sys.executable, "RUNS": str(tmp_path)}

    def run(*command):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1700)
        assert done.returncode == 0, done.stdout + done.stderr

    verl_hpc = [sys.executable, "-m", "verl_hpc"]
    run(SCRIPT, "sft", "5")
    base = tmp_path / "quickstart_sft/checkpoints/latest"
    command = [
        *verl_hpc,
        *("train", "--ranks", "4", "--config", str(CONFIG)),
        f"data.train.paths=[{tmp_path}/data/rl.jsonl]",
        f"data.evaluation.paths=[{tmp_path}/data/evaluation.jsonl]",
        f"model.path={base}",
        f"directory={tmp_path}",
        "seed=5",
    ]
    run(*command, "steps=40")
    run(*command)  # goes on from its checkpoint

    config = load_config(tmp_path / "quickstart_lora/config.yaml")
    counts = count_overlap([open_source(config.data.train)], open_source(config.data.evaluation))
    assert (counts.evaluation_prompts, counts.shared_prompts) == (512, 0)
    before, *_, after = accuracies(tmp_path / "quickstart_lora")
    assert before == accuracies(tmp_path / "quickstart_sft")[-1]
    assert after - before >= 0.15

    out = tmp_path / "exported"
    step = tmp_path / "quickstart_lora/checkpoints/latest"
    run(*verl_hpc, "export", "--step", str(step), "--out", str(out))
    with safe_open(out / "adapter_model.safetensors", "pt") as file:
        assert len(file.keys()) == 4 * 7 * 2
        assert file.get_tensor(
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
        ).any()
