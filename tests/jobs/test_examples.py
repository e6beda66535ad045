"""The examples, whole: from nothing to a report."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hpc.config.load import load_config
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source
from verl_hpc.metrics.log import read_metrics
from verl_hpc.placement.layouts import place_roles

SCRIPT = Path(__file__).parents[2] / "launch/examples.sh"


def start(name, directory):
    environ = os.environ | {"PYTHON": sys.executable, "RUNS": str(directory)}
    done = subprocess.run(
        [SCRIPT, name, "5"], env=environ, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (directory / name / "report.html").is_file()
    return read_metrics(directory / name)


def gained(rows, directory):
    """Accuracy of the last evaluation, less that of the first, on problems that no run of the
    example was trained on."""
    configs = [load_config(path) for path in sorted(directory.glob("*/config.yaml"))]
    (chosen,) = configs[0].evaluation_sets.values()
    counts = count_overlap([open_source(c.data.train) for c in configs], open_source(chosen.source))
    assert counts.evaluation_prompts and not counts.shared_prompts
    before, *_, after = [row["val/accuracy"] for row in rows if "val/accuracy" in row]
    return after - before


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_calculator_is_learned_to_be_asked(tmp_path):
    rows = start("calculator", tmp_path)
    assert gained(rows, tmp_path) >= 0.2
    turns = [row["rollout/turns/mean"] for row in rows if "rollout/turns/mean" in row]
    assert turns[-1] > turns[0] + 0.2, "most responses have two turns in the end"


def mean(rows, name):
    return sum(row[name] for row in rows) / len(rows)


def test_a_name_of_no_example_leaves_nothing_behind(tmp_path):
    (tmp_path / "launch").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "launch")
    done = subprocess.run([script, "nosuch"], capture_output=True, text=True)
    assert done.returncode == 2 and "no example nosuch; choose calculator" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_safe_rlhf_earns_more_below_the_limit(tmp_path):
    rows = start("safe_rlhf", tmp_path)
    first, last = rows[0], rows[-30:]
    limit = last[0]["safety/limit"]
    assert first["safety/cost"] > 1.5 * limit
    assert mean(last, "safety/cost") < limit
    # The most reward that a mean cost of c allows is 1 + c.
    earned, cost = mean(last, "critic/score/mean"), mean(last, "safety/cost")
    assert first["critic/score/mean"] + 0.15 < earned
    assert 0.85 * (1 + cost) < earned < 1 + cost + 0.01


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ppo_placed_apart_learns(tmp_path):
    rows = start("ppo_split", tmp_path)
    assert gained(rows, tmp_path) >= 0.2
    layouts = place_roles(load_config(tmp_path / "ppo_split" / "config.yaml"), 4)
    places = {name: layouts.pools[pool].ranks for name, pool in layouts.pool_of.items()}
    apart = {"actor": (0, 1), "rollout": (0, 1), "critic": (2,), "scoring": (3,)}
    assert {name: places[name] for name in apart} == apart


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_grpo_where_ranks_share_sequences_learns(tmp_path):
    rows = start("grpo_context", tmp_path)
    assert gained(rows, tmp_path) >= 0.15
    (layout,) = place_roles(
        load_config(tmp_path / "grpo_context" / "config.yaml"), 4
    ).train.values()
    assert (layout.cp, layout.num_replicas) == (2, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_grpo_on_responses_a_step_old_learns(tmp_path):
    rows = start("grpo_async", tmp_path)
    assert gained(rows, tmp_path) >= 0.2
    lags = [row["rollout/lag/max"] for row in rows if "rollout/lag/max" in row]
    assert lags[0] == 0 and set(lags[1:]) == {1}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_mixture_of_experts_learns(tmp_path):
    rows = start("moe", tmp_path)
    assert gained(rows, tmp_path) >= 0.15
    # Both engines choose the same experts, or their log-probs would be far apart.
    assert all(row["training/rollout_log_probs_diff_max"] < 1e-4 for row in rows)
    assert all(row["actor/expert_load"] >= 1.0 for row in rows)
