"""Two runs on four CPU ranks predict a third layout's operators: `plan calibrate`, for real."""

import json
from pathlib import Path

import pytest

from tests.jobs.launch import trained, write_config, write_problems
from verl_hpc.cli.main import main
from verl_hpc.cli.plan_runs import read_run
from verl_hpc.planner.timing.calibrate import CPU_SECONDS, LEAST_CPU_SECONDS, errors_of, measured
from verl_hpc.planner.timing.efficiency_file import read_efficiency
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.testing.tiny import make_tiny_model

SITE = "name: here\ngpus_per_node: 0\ntasks_per_node: 4\ncores_per_node: 4\n"
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
REWARD += "    return (sum(map(ord, solution_str)) % 5) / 4\n"
SKIP, STEPS = 3, 10
"""Medians are of seven steps: single ones are disturbed by whatever else the machine does."""
LAYOUTS = {
    "whole": {},
    "split": {"tensor_parallel": 4},
    "third": {"tensor_parallel": 2, "pipeline_parallel": 2},
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """GRPO on a decoder whose products are most of the work, not the host's."""
    directory = tmp_path_factory.mktemp("calibrate")
    data = write_problems(directory)
    rows = [json.loads(line) for line in Path(data["paths"][0]).read_text().splitlines()]
    model = make_tiny_model(
        directory / "model",
        "llama",
        prompts=[row["prompt"] for row in rows],
        hidden_size=384,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=4,
        head_dim=48,
    )
    (directory / "reward.py").write_text(REWARD)
    return {
        "recipe": "rl",
        "steps": STEPS,
        "directory": str(directory),
        "model": {"path": str(model), "dtype": "float32"},
        "optimizer": {"lr": 1e-5},
        "algorithm": {"advantage": {"name": "grpo"}, "kl": {"placement": "loss"}},
        "batch": {"size": 16, "max_tokens_per_micro_batch": 1024},
        "rollout": {
            "num_samples": 4,
            "max_prompt_tokens": 40,
            "max_response_tokens": 48,
            "kv_cache_gib": 0.1,
        },
        "data": {"train": data},
        "reward": {"function": f"{directory}/reward.py:compute_score"},
        "checkpoint": {"every": 1000},
        "metrics": {"terminal": "off", "report": False},
    }


@pytest.mark.slow
def test_two_layouts_predict_a_third_within_a_quarter(tree, tmp_path, capsys):
    """CPU seconds of operators above 10 ms; rank 0's, as it writes them."""
    for name, parallel in LAYOUTS.items():
        config = write_config(
            tmp_path / f"{name}.yaml", tree | {"name": name, "parallel": parallel}
        )
        trained(4, config, timeout=1500)
    runs = {name: Path(tree["directory"]) / name for name in LAYOUTS}
    (tmp_path / "site.yaml").write_text(SITE)
    words = ["--by", "cpu", "--cluster", tmp_path / "site.yaml", "--out", tmp_path / "fit.yaml"]
    words = ["plan", "calibrate", runs["whole"], runs["split"], "--skip", SKIP, *words]
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    print(capsys.readouterr().out)

    third = read_run(runs["third"], str(tmp_path / "site.yaml"))
    machine = Machine(third.hardware, read_efficiency(tmp_path / "fit.yaml", third.hardware.kind))
    rows = third.rows_after(SKIP)
    known = (third.config, third.archs, third.layouts, rows, machine)
    seen = measured("third", *known, by=CPU_SECONDS)
    errors = errors_of([seen], machine.efficiency)
    print(*(f"{e.operator} {e.measured:.4f} s {e.relative:+.0%}" for e in errors), sep="\n")
    assert {"rollout", "ref_log_probs", "update_actor"} <= {e.operator for e in errors}
    for error in errors:
        assert error.measured > LEAST_CPU_SECONDS
        assert abs(error.relative) < 0.25, error
