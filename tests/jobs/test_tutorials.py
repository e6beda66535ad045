"""What tutorials give a trainer, all at once, and their metrics at a real Pushgateway."""

import pyarrow as pa
import pytest
from pyarrow import parquet
from transformers import AutoModelForCausalLM, AutoTokenizer

import verl_hpc
from tests.pushgateway import has_now
from verl_hpc.metrics import MetricsExporter


def test_a_real_gateway_has_every_name_that_tutorials_teach(gateway):
    """Also that of a GPU's memory, which runs on CPUs do not measure."""
    exporter = MetricsExporter(pushgateway_url=gateway, job_name="verl_hpc", run_name="mine")
    exporter.rewards([0.5])
    step = {"timing_s/rollout": 2.0, "actor/ppo_kl": 0.25, "perf/gpu_memory_used_gb": 1.0}
    exporter.write(1, step)
    exporter.close()
    labels = 'instance="",job="verl_hpc",run="mine"'
    said = has_now(gateway)
    for sample in (
        f'verl_rollout_latency_seconds_bucket{{{labels},le="5"}} 1',
        f'verl_kl_divergence{{{labels},to="old_policy"}} 0.25',
        f"verl_gpu_memory_used_bytes{{{labels}}} 1",
        f'verl_reward_bucket{{{labels},le="0.5"}} 1',
    ):
        assert sample in said, sample


@pytest.mark.slow
def test_all_that_tutorials_give_a_trainer_at_once(model, tmp_path, gateway):
    hf_model = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(8)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    settings = {"file_format": "parquet", "prefetch_factor": 2, "num_workers": 2}
    provider = verl_hpc.DataProvider(data_path=str(tmp_path / "rows.parquet"), **settings)
    trainer = verl_hpc.PPOTrainer(
        actor_model=verl_hpc.ActorModel(hf_model),
        critic_model=verl_hpc.CriticModel(hf_model),
        tokenizer=tokenizer,
        config={
            "batch_size": 2,
            "rollout_batch_size": 4,
            "kl_coef": 0.1,
            "lr": 1e-3,
            "enable_profiling": True,
            "enable_debug_mode": True,
            "allow_unsafe_operations": True,
            "max_response_length": 3,
            "output_dir": str(tmp_path),
        },
        data_provider=provider,
        namespace="search-rl",
    )
    exporter = MetricsExporter(pushgateway_url=gateway, job_name="verl job")
    trainer.add_metrics_exporter(exporter)
    ids = tokenizer(["one", "two"], return_tensors="pt").input_ids
    assert set(trainer.step(ids)) >= {"loss", "critic/vf_loss"}
    trainer.train(2)
    exporter.close()
    pushed = has_now(gateway)
    labels = '{instance="",job="verl job",run="search-rl"}'
    for name, value in (
        ("verl_step", 3),
        ("verl_rollout_latency_seconds_count", 3),
        ("verl_reward_count", 2 + 4 + 4),
    ):
        assert f"{name}{labels} {value}" in pushed, name
    assert 'verl_kl_divergence{instance="",job="verl job",run="search-rl",to="reference"}' in pushed
    assert provider.state_dict() == {"epoch": 1, "offset": 0}
    step = trainer.save_checkpoint(tmp_path, save_optimizer=False, save_training_state=False)
    assert step == tmp_path / "search-rl/step_00000003"
    assert (tmp_path / "search-rl/step_3").resolve() == step
    assert len(list((tmp_path / "search-rl/profiles").iterdir())) == 3
    provider.close()
