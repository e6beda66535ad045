"""Prometheus's names and values of a step, and what a destination that fails does."""

from __future__ import annotations

import logging
import math
import re
import socket
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.cluster.requests import ROOT
from tests.unit.waiting import wait_for
from verl_hpc.config.trackers import MetricsConfig, PrometheusConfig
from verl_hpc.errors import ConfigError
from verl_hpc.metrics import MetricsExporter
from verl_hpc.metrics.prometheus import PrometheusMetrics
from verl_hpc.metrics.sinks import check_sinks, open_sinks

STEP = {
    "timing_s/rollout": 3.0, "timing_s/rollout/reshard": 0.5, "timing_s/update_actor": 40.0,
    "timing_s/step": 44.0, "cpu_s/rollout": 2.5, "critic/score/mean": -1.5, "actor/kl_loss": 0.125,
    "actor/ppo_kl": 0.25, "perf/gpu_memory_used_gb": 2.0, "actor/grad_norm": math.nan,
}  # fmt: skip


def values(metrics: PrometheusMetrics) -> dict[tuple[str, ...], float]:
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_names_of_a_step():
    metrics = PrometheusMetrics()
    metrics.rewards([0.0, 1.0, 1.0, -3.0])
    metrics.step(7, STEP)
    samples = values(metrics)
    expected = {
        ("verl_step",): 7,
        ("verl_rollout_latency_seconds_count",): 1,
        ("verl_rollout_latency_seconds_bucket", "2.5"): 0,
        ("verl_rollout_latency_seconds_bucket", "5.0"): 1,
        ("verl_step_latency_seconds_sum",): 44.0,
        ("verl_operator_latency_seconds_sum", "rollout"): 3.0,
        ("verl_operator_latency_seconds_sum", "rollout/reshard"): 0.5,
        ("verl_operator_latency_seconds_sum", "update_actor"): 40.0,
        ("verl_operator_cpu_seconds", "rollout"): 2.5,
        ("verl_kl_divergence", "reference"): 0.125,
        ("verl_kl_divergence", "old_policy"): 0.25,
        ("verl_gpu_memory_used_bytes",): 2 * 2**30,
        ("verl_critic_score_mean",): -1.5,
        ("verl_actor_kl_loss",): 0.125,
    }
    assert {name: samples[name] for name in expected} == expected
    assert math.isnan(samples["verl_actor_grad_norm",])
    buckets = ("-5.0", "-2.0", "0.0", "0.9", "1.0", "+Inf")
    assert [samples["verl_reward_bucket", end] for end in buckets] == [0, 1, 2, 2, 4, 4]


def test_what_is_not_measured_is_not_there():
    metrics = PrometheusMetrics()
    metrics.step(1, {"sft/loss": 2.0})
    names = {name for name, *_ in values(metrics)}
    assert {"verl_sft_loss", "verl_step"} <= names
    assert not [n for n in names if n.startswith(("verl_gpu", "verl_reward", "verl_rollout"))]


@pytest.mark.parametrize("name", ["kl_divergence", "reward", "step", "gpu/memory_used_bytes"])
def test_a_metric_cannot_have_a_name_that_is_taken(name):
    metrics = PrometheusMetrics()
    metrics.rewards([1.0])
    metrics.step(3, {name: 0.5, "actor/ppo_kl": 0.25, "perf/gpu_memory_used_gb": 1.0})
    found = values(metrics)
    assert (found["verl_" + name.replace("/", "_") + "_2",], found["verl_step",]) == (0.5, 3)


def test_labels_are_chosen_before_the_first_step():
    metrics = PrometheusMetrics()
    metrics.by_task()
    metrics.named("mine")
    metrics.rewards([1.0], "solve")
    metrics.step(1, {"task/x": 0.5, "task/solve/x": 0.25})
    metrics.by_task()
    metrics.named("mine")
    samples = values(metrics)
    # A name that begins as those of a task is of no task.
    assert (samples["verl_task_x", "mine", ""], samples["verl_x", "mine", "solve"]) == (0.5, 0.25)
    with pytest.raises(ConfigError, match="label run = 'mine'.*make another MetricsExporter"):
        metrics.named("other")
    # A trainer without a namespace takes no other one's label, nor gets one.
    with pytest.raises(ConfigError, match="label run = 'mine', and .* no label run; make another"):
        metrics.named("")
    used, unnamed = PrometheusMetrics(), PrometheusMetrics()
    used.rewards([1.0])
    with pytest.raises(ConfigError, match="without the label task.*make another MetricsExporter"):
        used.by_task()
    unnamed.named("")
    unnamed.named("")
    for plain in (used, unnamed):
        told = "have no label run, and .* run = 'mine'; make another"
        with pytest.raises(ConfigError, match=told):
            plain.named("mine")


def test_two_metrics_of_one_name_are_two_gauges():
    metrics = PrometheusMetrics()
    for step in (1, 2):
        metrics.step(step, {"a/b": 1.0 * step, "a_b": 2.0 * step, "a.b": 3.0 * step})
    found = values(metrics)
    assert [found[name,] for name in ("verl_a_b", "verl_a_b_2", "verl_a_b_3")] == [2.0, 4.0, 6.0]


def test_a_file_is_replaced_in_one_piece(tmp_path):
    file = tmp_path / "run.prom"
    config = MetricsConfig(terminal="off", prometheus=PrometheusConfig(textfile=str(file)))
    with open_sinks(config, tmp_path, 5) as sinks:
        sinks.write(1, STEP)
        first = file.read_text()
        before = file.stat().st_ino
        sinks.write(2, STEP)
        assert file.stat().st_ino != before
    # The node exporter reads the files of all runs of a node as one.
    assert f'verl_step{{run="{tmp_path.name}"}} 1.0' in first
    assert f'verl_step{{run="{tmp_path.name}"}} 2.0' in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]


def test_the_alerts_name_what_there_is():
    """`promtool check rules` has read the file; that names and labels are ours it does not know."""
    metrics = PrometheusMetrics()
    metrics.rewards([0.0])
    metrics.step(1, STEP)
    text = generate_latest(metrics.registry).decode()
    names = {name for name, *_ in values(metrics)}
    (group,) = yaml.safe_load((ROOT / "configs/prometheus/alerts.yaml").read_text())["groups"]
    asked = "\n".join(rule["expr"] for rule in group["rules"])
    mentioned = set(re.findall(r"verl_[a-z_]+", asked.replace('job="verl_hpc"', "")))
    assert {"verl_kl_divergence", "verl_reward_bucket", "verl_gpu_memory_used_bytes"} <= mentioned
    assert mentioned <= names
    for label in re.findall(r'to="\w+"', asked):
        assert label in text


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize(("given", "run"), [({}, "project"), ({"run_name": "mine"}, "mine")])
def test_a_port_is_scraped_while_the_run_lasts(given, run, tmp_path):
    port = free_port()
    exporter = MetricsExporter(port=port, textfile=tmp_path / "run.prom", **given)
    exporter.named("project")
    exporter.rewards([1.0])
    exporter.write(4, STEP)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        scraped = answer.read().decode()
    exporter.close()
    for text in (scraped, (tmp_path / "run.prom").read_text()):
        assert f'verl_step{{run="{run}"}} 4.0' in text
        for family in text_string_to_metric_families(text):
            assert {sample.labels["run"] for sample in family.samples} == {run}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = rf"metrics.prometheus.port = {port}: .*in use"
        with pytest.raises(ConfigError, match=said):
            MetricsExporter(port=port)
        config = MetricsConfig(prometheus=PrometheusConfig(port=port))
        check_sinks(config, leads=False)
        with pytest.raises(ConfigError, match=said):
            check_sinks(config, leads=True)
    check_sinks(config, leads=True)


def test_a_gateway_that_is_away_is_told_once_and_found_again(caplog):
    port = free_port()
    exporter = MetricsExporter(f"http://127.0.0.1:{port}", "job", run_name="mine")

    with caplog.at_level(logging.WARNING):
        exporter.write(1, STEP)
        wait_for(lambda: caplog.records)
        exporter.write(2, STEP)
    got: list[tuple[str, bytes]] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", port), Gateway) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        exporter.write(3, STEP)
        exporter.close()
        server.shutdown()
        thread.join()
    path, body = got[-1]
    assert path == "/metrics/job/job/run/mine"
    assert b'verl_step{run="mine"} 3.0' in body
    assert len(caplog.records) == 1
    assert "each step tries again" in caplog.records[0].getMessage()


def test_a_file_that_cannot_be_written_is_told_once(tmp_path, caplog):
    exporter = MetricsExporter(textfile=tmp_path / "no" / "run.prom")
    with caplog.at_level(logging.WARNING):
        exporter.write(1, STEP)
        exporter.write(2, STEP)
        (tmp_path / "no").mkdir()
        exporter.write(3, STEP)
    exporter.close()
    (record,) = caplog.records
    assert str(tmp_path / "no" / "run.prom") in record.getMessage()
    assert "verl_step 3.0" in (tmp_path / "no" / "run.prom").read_text()
