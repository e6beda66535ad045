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


def the_calculator_is_asked(rows, directory):
    turns = [row["rollout/turns/mean"] for row in rows if "rollout/turns/mean" in row]
    assert turns[-1] > turns[0] + 0.2, "most responses have two turns in the end"


def roles_are_placed_apart(rows, directory):
    layouts = place_roles(load_config(directory / "ppo_split/config.yaml"), 4)
    places = {name: layouts.pools[pool].ranks for name, pool in layouts.pool_of.items()}
    apart = {"actor": (0, 1), "rollout": (0, 1), "critic": (2,), "scoring": (3,)}
    assert {name: places[name] for name in apart} == apart


def ranks_share_sequences(rows, directory):
    (layout,) = place_roles(load_config(directory / "grpo_context/config.yaml"), 4).train.values()
    assert (layout.cp, layout.num_replicas) == (2, 2)


def responses_are_a_step_old(rows, directory):
    lags = [row["rollout/lag/max"] for row in rows if "rollout/lag/max" in row]
    assert lags[0] == 0 and set(lags[1:]) == {1}


def both_engines_choose_the_same_experts(rows, directory):
    """Their log-probs would be far apart otherwise."""
    assert all(row["training/rollout_log_probs_diff_max"] < 1e-4 for row in rows)
    assert all(row["actor/expert_load"] >= 1.0 for row in rows)


EXAMPLES = {
    "calculator": (0.2, the_calculator_is_asked),
    "ppo_split": (0.2, roles_are_placed_apart),
    "grpo_context": (0.15, ranks_share_sequences),
    "grpo_async": (0.2, responses_are_a_step_old),
    "moe": (0.15, both_engines_choose_the_same_experts),
}
"""The least gain of each in accuracy, and what else its run shows."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns(tmp_path, name):
    gain, check = EXAMPLES[name]
    rows = start(name, tmp_path)
    assert gained(rows, tmp_path) >= gain
    check(rows, tmp_path)
