"""A real run that everything watches: Prometheus, W&B, MLflow, SwanLab and the profiler."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.jobs.conftest import ppo
from tests.jobs.launch import train, verl_hpc, write_config
from tests.pushgateway import has_now
from tests.wandb_stand_in import WandbStandIn
from verl_hpc.metrics import MetricsExporter
from verl_hpc.metrics.log import read_metrics
from verl_hpc.runtime.preflight.speeds import OPERATIONS

SECRET = "0123456789abcdef" * 2 + "deadbeef"
JOB = "tiny runs"


@pytest.fixture(scope="module")
def run(gateway, model, tmp_path_factory):
    """The directory of a run of two steps with every tracker, in one process."""
    directory = tmp_path_factory.mktemp("watched")
    tree = ppo(model, directory) | {"name": "watched", "steps": 2, "parallel": {}, "checkpoint": {}}
    tree["runtime"] = {"profile": {"steps": [2], "memory": True}}
    prometheus = {"textfile": str(directory / "run.prom"), "job_name": JOB, "pushgateway": gateway}
    tree["metrics"] |= {
        "prometheus": prometheus,
        "wandb": {"project": "letters"},
        "mlflow": {"experiment": "letters"},
        "swanlab": {"project": "letters"},
    }
    keys = {"WANDB_API_KEY": SECRET, "SWANLAB_API_KEY": SECRET}
    os.environ |= keys
    try:
        status, output = train(1, write_config(directory / "config.yaml", tree))
    finally:
        for key in keys:
            del os.environ[key]
    assert status == 0, output
    assert "is dropped" not in output, output
    return directory / "watched"


@pytest.fixture
def textfile(run):
    """What the file says after the run."""
    return (run.parent / "run.prom").read_text()


@pytest.fixture
def pushed(run, gateway):
    """What the gateway says after the run."""
    return has_now(gateway)


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels, without those that the gateway adds and when series began."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {n: v for n, v in sample.labels.items() if n not in ("instance", "job", "run")}
            if "le" in labels:  # 1.0 here, 1 there
                labels["le"] = str(float(labels["le"]))
            if sample.name.startswith("verl_") and not sample.name.endswith("_created"):
                samples[sample.name, *(f"{n}={v}" for n, v in sorted(labels.items()))] = (
                    sample.value
                )
    return samples


@pytest.mark.parametrize("destination", ["textfile", "pushed"])
def test_prometheus_has_the_names_and_values(run, destination, request):
    text = request.getfixturevalue(destination)
    samples, (first, last) = samples_of(text), read_metrics(run)
    assert 'run="watched"' in text
    assert samples["verl_step",] == 2
    assert samples["verl_rollout_latency_seconds_count",] == 2
    seconds = first["timing_s/rollout"] + last["timing_s/rollout"]
    assert samples["verl_rollout_latency_seconds_sum",] == pytest.approx(seconds)
    operators = {n.removeprefix("timing_s/") for n in last if n.startswith("timing_s/")} - {"step"}
    for name in operators:
        assert samples["verl_operator_latency_seconds_count", f"operator={name}"] >= 1
    assert samples["verl_kl_divergence", "to=old_policy"] == last["actor/ppo_kl"]
    assert samples["verl_kl_divergence", "to=reference"] == last["actor/reward_kl_penalty"]
    assert samples["verl_critic_score_mean",] == last["critic/score/mean"]
    assert samples["verl_reward_count",] == 2 * 4 * 2, "steps x prompts x responses"
    # The reward function of these tests gives 0, 1/4, 1/2, 3/4 or 1: buckets tell them apart.
    ends = ["0.0", "0.3", "0.5", "0.8", "1.0"]
    below = [samples["verl_reward_bucket", f"le={end}"] for end in ends]
    assert below[-1] == samples["verl_reward_count",]
    counts = [b - a for a, b in pairwise([0, *below])]
    total = 8 * (first["critic/score/mean"] + last["critic/score/mean"])
    assert sum(n * i / 4 for i, n in enumerate(counts)) == pytest.approx(total)
    assert samples["verl_perf_throughput",] > 0


def test_a_real_pushgateway_says_the_same_as_the_file(run, textfile, pushed):
    written = samples_of(textfile)
    assert len(written) > 100 and 'verl_step{run="watched"} 2.0' in textfile
    # The gateway adds a sum, of 0, where there is none.
    assert {n: v for n, v in samples_of(pushed).items() if n in written} == written
    assert f'job="{JOB}",run="watched"' in pushed
    assert [p.name for p in run.parent.glob("run.prom*")] == ["run.prom"]


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


def test_wandb_sync_uploads_the_offline_run(run, tmp_path):
    """To a local stand-in for W&B's server: nothing here reaches the real one."""
    with WandbStandIn() as server:
        keys = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": SECRET, "HOME": str(tmp_path)}
        (offline,) = (run / "wandb").glob("offline-run-*")
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "sync", offline],
            env=os.environ | keys, cwd=tmp_path, timeout=120, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        history = server.history
        assert server.runs[0]["displayName"] == server.runs[0]["groupName"] == "watched"
        assert server.runs[0]["project"] == "letters"
        assert json.loads(server.runs[0]["config"])["optimizer"]["value"]["lr"] == 1e-3
    rows = read_metrics(run)
    assert [row["_step"] for row in history] == [1, 2]
    for sent, row in zip(history, rows, strict=True):
        assert sent["critic/score/mean"] == row["critic/score/mean"]


def test_mlflow_reads_its_run(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = pytest.importorskip("mlflow.tracking").MlflowClient((run / "mlflow").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("letters").experiment_id])
    assert (found.info.run_name, found.info.status) == ("watched", "FINISHED")
    history = client.get_metric_history(found.info.run_id, "critic/score/mean")
    assert [(m.step, m.value) for m in history] == [
        (row["step"], row["critic/score/mean"]) for row in read_metrics(run)
    ]


def test_swanlab_has_its_run(run):
    (directory,) = (run / "swanlab").glob("run-*")
    (file,) = directory.glob("*.swanlab")
    assert b"critic/score/mean" in file.read_bytes()


def test_no_key_is_written_anywhere(run):
    files = [path for path in run.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_the_trace_has_the_operators(run):
    (file,) = (run / "profiles").iterdir()
    assert file.name == "step_000002_rank_0.json.gz"
    with gzip.open(file) as text:
        events = json.load(text)["traceEvents"]
    ranges = {e["name"] for e in events if e.get("cat") == "user_annotation"}
    last = read_metrics(run)[-1]
    operators = {n.removeprefix("timing_s/") for n in last if n.startswith("timing_s/")}
    assert {n for n in operators if "/" not in n} - {"step", "write_profile"} <= ranges
    assert {"rollout", "update_actor", "update_critic"} <= ranges
    inside = [e for e in events if e.get("cat") == "cpu_op"]
    assert any(e["name"] == "aten::mm" for e in inside)
    assert any(e["name"] == "[memory]" for e in events), "memory: true"


def test_comm_measures_ranks_that_it_starts():
    done = verl_hpc("comm", "--ranks", 2, "--sizes", "0.1", "--json", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["operation"] for row in rows] == list(OPERATIONS)
    assert all(row["gb_s"] > 0 and row["mpi_gb_s"] > 0 for row in rows)
