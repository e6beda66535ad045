"""The quickstart and the examples, whole: from nothing to a report, and better on problems that no
run was trained on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from verl_hpc.config.load import load_config
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source
from verl_hpc.metrics.log import read_metrics
from verl_hpc.placement.layouts import place_roles

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch/examples.sh"
QUICKSTART = ROOT / "launch/quickstart.sh"
MEASURED = ("time", "timing_s/", "cpu_s/", "energy_j/", "perf/", "memory/", "reshard/seconds")
"""How names of metrics begin that measure seconds and bytes."""


def shell(runs, *command):
    """What a command prints, which ends well."""
    environ = os.environ | {"PYTHON": sys.executable, "RUNS": str(runs)}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def gained(runs, name):
    """(first accuracy, gain) of a run, on problems that no run of `runs` was trained on."""
    configs = [load_config(path) for path in sorted(runs.glob("*/config.yaml"))]
    (chosen,) = configs[0].evaluation_sets.values()
    counts = count_overlap([open_source(c.data.train) for c in configs], open_source(chosen.source))
    assert counts.evaluation_prompts and not counts.shared_prompts
    before, *_, after = accuracies(runs / name)
    return before, after - before


def accuracies(run):
    return [row["val/accuracy"] for row in read_metrics(run) if "val/accuracy" in row]


def learnt(run):
    """The metrics of all steps but for how long they took."""
    return [
        {name: value for name, value in row.items() if not name.startswith(MEASURED)}
        for row in read_metrics(run)
    ]


def train_by_file(runs, name, out):
    """Train from the quickstart's warm-up and problems, stopped after 40 steps and resumed."""
    words = [
        *("--ranks", "4", "--config", f"configs/run/examples/{name}.yaml", "seed=5"),
        f"data.train.paths=[{runs}/data/rl.jsonl]",
        f"data.evaluation.paths=[{runs}/data/evaluation.jsonl]",
        f"model.path={runs}/quickstart_sft/checkpoints/latest",
        f"directory={out}",
    ]
    for more in (["steps=40"], []):
        shell(runs, sys.executable, "-m", "verl_hpc", "train", *words, *more)


def test_a_name_of_no_example_leaves_nothing_behind(tmp_path):
    (tmp_path / "launch").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "launch")
    done = subprocess.run([script, "nosuch"], capture_output=True, text=True)
    assert done.returncode == 2 and "no example nosuch; choose calculator" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("recipe", "name"), [("grpo", "quickstart"), ("ppo", "quickstart_ppo"), ("verl", "quickstart")]
)
def test_the_quickstart(tmp_path, recipe, name):
    said = shell(tmp_path, QUICKSTART, recipe, "5")
    before, gain = gained(tmp_path, name)
    # The same weights, read back from the checkpoint, and the same greedy answers.
    assert before == accuracies(tmp_path / "quickstart_sft")[-1]
    assert 0.3 <= before <= 0.6 and gain >= 0.2
    assert "; 0 of these occur in the " in said
    if recipe == "verl":
        train_by_file(tmp_path, name, tmp_path / "ours")
        assert learnt(tmp_path / name) == learnt(tmp_path / "ours" / name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_adapters_alone(tmp_path):
    shell(tmp_path, QUICKSTART, "sft", "5")
    train_by_file(tmp_path, "quickstart_lora", tmp_path)
    before, gain = gained(tmp_path, "quickstart_lora")
    assert before == accuracies(tmp_path / "quickstart_sft")[-1]
    assert gain >= 0.15
    out, step = tmp_path / "exported", tmp_path / "quickstart_lora/checkpoints/latest"
    shell(tmp_path, sys.executable, "-m", "verl_hpc", "export", "--step", step, "--out", out)
    with safe_open(out / "adapter_model.safetensors", "pt") as file:
        assert len(file.keys()) == 4 * 7 * 2
        assert file.get_tensor(
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
        ).any()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_images_that_occur_nowhere_in_training(tmp_path):
    shell(tmp_path, SCRIPT, "vision", "0")
    before, gain = gained(tmp_path, "vision")
    assert before == accuracies(tmp_path / "vision_sft")[-1]
    assert 0.2 <= before <= 0.6 and gain >= 0.2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_agent_of_openai_learns_to_look_names_up(tmp_path):
    shell(tmp_path, SCRIPT, "lookup_agent", "0")
    assert gained(tmp_path, "lookup_agent")[1] >= 0.2
    turns = [row["rollout/turns/mean"] for row in read_metrics(tmp_path / "lookup_agent")[1:]]
    assert turns[-1] > turns[0] + 0.5


def mean(rows, name):
    return sum(row[name] for row in rows) / len(rows)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_safe_rlhf_earns_more_below_the_limit(tmp_path):
    shell(tmp_path, SCRIPT, "safe_rlhf", "5")
    rows = read_metrics(tmp_path / "safe_rlhf")
    first, last = rows[0], rows[-30:]
    limit = last[0]["safety/limit"]
    assert first["safety/cost"] > 1.5 * limit
    assert mean(last, "safety/cost") < limit
    # The most reward that a mean cost of c allows is 1 + c.
    earned, cost = mean(last, "critic/score/mean"), mean(last, "safety/cost")
    assert first["critic/score/mean"] + 0.15 < earned
    assert 0.85 * (1 + cost) < earned < 1 + cost + 0.01


def the_calculator_is_asked(rows, run):
    turns = [row["rollout/turns/mean"] for row in rows if "rollout/turns/mean" in row]
    assert turns[-1] > turns[0] + 0.2, "most responses have two turns in the end"


def roles_are_placed_apart(rows, run):
    layouts = place_roles(load_config(run / "config.yaml"), 4)
    places = {name: layouts.pools[pool].ranks for name, pool in layouts.pool_of.items()}
    apart = {"actor": (0, 1), "rollout": (0, 1), "critic": (2,), "scoring": (3,)}
    assert {name: places[name] for name in apart} == apart


def ranks_share_sequences(rows, run):
    (layout,) = place_roles(load_config(run / "config.yaml"), 4).train.values()
    assert (layout.cp, layout.num_replicas) == (2, 2)


def responses_are_a_step_old(rows, run):
    lags = [row["rollout/lag/max"] for row in rows if "rollout/lag/max" in row]
    assert lags[0] == 0 and set(lags[1:]) == {1}


def both_engines_choose_the_same_experts(rows, run):
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
    least, check = EXAMPLES[name]
    shell(tmp_path, SCRIPT, name, "5")
    assert (tmp_path / name / "report.html").is_file()
    assert gained(tmp_path, name)[1] >= least
    check(read_metrics(tmp_path / name), tmp_path / name)
