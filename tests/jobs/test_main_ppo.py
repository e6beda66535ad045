"""A run by verl's command line, to its end."""

import json
import os
import subprocess
import sys

import yaml

from verl_hpc.config.load import load_config, parse_config
from verl_hpc.metrics.log import read_metrics


def main_ppo(words):
    return subprocess.run(
        [sys.executable, "-m", "verl_hpc.trainer.main_ppo", *words],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def words_of(tree, directory):
    """verl's words of a run of two steps on two ranks, with the model, rows and reward of ours."""
    return [
        f"data.train_files={tree['data']['train']['paths'][0]}",
        "data.train_batch_size=4",
        "data.max_prompt_length=80",
        "data.max_response_length=6",
        f"actor_rollout_ref.model.path={tree['model']['path']}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "algorithm.use_kl_in_reward=True",
        f"reward.custom_reward_function.path={directory}/reward.py",
        "trainer.total_training_steps=2",
        f"trainer.default_local_dir={directory}/run",
        "trainer.n_gpus_per_node=2",
        "verl_hpc.metrics.report=false",
    ]


def test_verls_keys_train(tree, tmp_path):
    """Two ranks without a launcher, PPO with a critic and an adaptive penalty: the run of our file
    of the same settings."""
    tree |= {"steps": 2, "parallel": {"tensor_parallel": 2, "data_parallel": 1}}
    models = ("actor_rollout_ref.actor", "critic", "actor_rollout_ref.ref")
    layout = ("tensor_model_parallel_size=2", "sequence_parallel=False", "dtype=float32")
    megatron = [f"{model}.megatron.{word}" for model in models for word in layout]
    optimizers = [
        f"{model}.optim.{word}"
        for model in ("actor_rollout_ref.actor", "critic")
        for word in ("lr=1e-3", "weight_decay=0", "betas=[0.9,0.95]")
    ]
    penalty = ["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=10"]
    saves = ["trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=9", "trainer.logger=[file]"]
    words = [*words_of(tree, tmp_path), *megatron, *optimizers, *penalty, *saves]
    done = main_ppo(["model_engine=megatron", *words])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data.val_files: not given: nothing is evaluated" in done.stderr
    ran = load_config(tmp_path / "run/config.yaml")
    assert ran == parse_config(yaml.safe_load(yaml.safe_dump(tree)))
    steps = read_metrics(tmp_path / "run")
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["perf/ranks"] == 2 for row in steps if "perf/ranks" in row)
    computed = {"actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/score/mean"}
    assert all(computed <= row.keys() for row in steps)


def test_a_tutorials_file_trains(model, tmp_path):
    """PPO in one process, by `cli.train`: short keys, rows of prompt and answer, vLLM."""
    rows = [{"prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "digits.py").write_text(
        "def digits_reward(sampled_response, reference_answer):\n"
        "    return sum(map(ord, sampled_response)) % 5 / 4 + float(reference_answer < '9')\n"
    )
    said = {
        "algorithm": {"name": "ppo", "clip_range": 0.2, "kl_coef": 0.02},
        "model": {
            "pretrain_model_path": str(model),
            "reward_function": f"{tmp_path}/digits.py:digits_reward",
        },
        "data": {"train_path": str(tmp_path / "rows.jsonl"), "batch_size_per_gpu": 8},
        "max_prompt_length": 16,
        "max_response_length": 6,
        "engine": {"actor_type": "fsdp", "critic_type": "fsdp", "num_gpus": 1},
        "train_micro_batch_size_per_gpu": 4,
        "rollout_per_device_batch_size": 8,
        "adam_eps": 1e-5,
        "lr": 1e-3,
        "steps": 2,
        "output_dir": str(tmp_path / "run"),
    }
    (tmp_path / "ppo_config.yaml").write_text(yaml.safe_dump(said))
    command = [sys.executable, "-m", "verl_hpc.cli.train", "--config", "ppo_config.yaml"]
    pipes = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*command, "algorithm.clip_range=0.1"], **pipes)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "run"
    assert load_config(run / "config.yaml").algorithm.loss.clip_high == 0.1
    steps = read_metrics(run)
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["actor/grad_norm"] > 0 and row["critic/grad_norm"] > 0 for row in steps)
    assert (run / "checkpoints/latest/manifest.json").is_file()
