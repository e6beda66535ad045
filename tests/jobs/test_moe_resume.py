"""A job of a mixture of experts, killed and resumed: bit for bit on the same layout, and on with
another one of its experts."""

import os
import signal

import pytest

from tests.jobs import launch
from tests.jobs.conftest import VLLM, ppo
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.metrics.log import read_metrics
from verl_hpc.testing.tiny import make_tiny_model


@pytest.fixture
def tree(tmp_path):
    """Actor and critic are mixtures, whose experts are divided over both ranks."""
    model = make_tiny_model(
        tmp_path / "model",
        "qwen3_moe",
        hidden_size=64,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=2,
    )
    changed = ppo(model, tmp_path)
    changed["model"]["router"] = {"seq_aux_loss": 0.01}
    changed["parallel"] = {"expert_parallel": 2}
    changed["rollout"] |= VLLM | {"tensor_parallel": 2, "expert_parallel": True}
    return changed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_resumed(tree, tmp_path):
    calm = launch.write_config(tmp_path / "calm.yaml", tree | {"name": "calm"})
    launch.trained(2, calm)
    config = launch.write_config(tmp_path / "config.yaml", tree | {"name": "killed"})
    root = tmp_path / "killed/checkpoints"
    job = launch.start_training(2, config)
    assert launch.wait_until(lambda: len(complete_steps(root)) >= 2, job), "the run is over"
    os.kill(launch.ranks_of(job)[1], signal.SIGKILL)
    assert launch.finish(job, timeout=60)[0] != 0
    assert len(complete_steps(root)) < tree["steps"], "nothing was left to do"
    launch.trained(2, config)
    assert launch.differing(tmp_path / "calm/checkpoints/latest", root / "latest") == []
    before = read_metrics(tmp_path / "killed")
    assert [row["step"] for row in before] == [1, 2, 3, 4]
    assert all(row["actor/expert_load"] >= 1 <= row["critic/expert_load"] for row in before)

    other = {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 2}
    words = [f"parallel.{name}={str(value).lower()}" for name, value in other.items()]
    words.append("parallel.expert_parallel=1")
    for run, layout in ((calm, []), (config, words)):
        launch.trained(2, run, *layout, "steps=5")
    on, elsewhere = (read_metrics(tmp_path / name)[-1] for name in ("calm", "killed"))
    assert on["step"] == elsewhere["step"] == 5
    assert elsewhere["training/rollout_log_probs_diff_max"] < 1e-4
    for name in ("actor/grad_norm", "critic/grad_norm", "critic/score/mean"):
        assert elsewhere[name] == pytest.approx(on[name], rel=1e-3), name
