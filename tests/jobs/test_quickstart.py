"""The quickstart, whole: it improves on problems that it has not been trained on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hpc.config.load import load_config
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source
from verl_hpc.metrics.log import read_metrics

SCRIPT = Path(__file__).parents[2] / "launch/quickstart.sh"


ROOT = SCRIPT.parents[1]
MEASURED = ("time", "timing_s/", "cpu_s/", "energy_j/", "perf/", "memory/", "reshard/seconds")
"""How names of metrics begin that measure seconds and bytes."""


def learnt(run_directory):
    """The metrics of all steps but for how long they took."""
    return [
        {name: value for name, value in row.items() if not name.startswith(MEASURED)}
        for row in read_metrics(run_directory)
    ]


def accuracies(run_directory):
    rows = read_metrics(run_directory)
    return [row["val/accuracy"] for row in rows if "val/accuracy" in row]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("recipe", "name"), [("grpo", "quickstart"), ("ppo", "quickstart_ppo"), ("verl", "quickstart")]
)
def test_the_gain_is_on_problems_that_training_has_not_seen(tmp_path, recipe, name):
    environ = os.environ | {"PYTHON": sys.executable, "RUNS": str(tmp_path)}
    done = subprocess.run(
        [SCRIPT, recipe, "5"], env=environ, capture_output=True, text=True, timeout=3500
    )
    assert done.returncode == 0, done.stdout + done.stderr

    warm_up, then = (load_config(tmp_path / n / "config.yaml") for n in ("quickstart_sft", name))
    assert warm_up.data.evaluation == then.data.evaluation
    training = [open_source(config.data.train) for config in (warm_up, then)]
    counts = count_overlap(training, open_source(then.data.evaluation))
    assert (counts.evaluation_prompts, counts.shared_prompts) == (512, 0)
    # Each run has problems of its own.
    assert {problem.prompt for problem in training[0]} != {p.prompt for p in training[1]}

    after_warm_up = accuracies(tmp_path / "quickstart_sft")[-1]
    before, *_, after = accuracies(tmp_path / name)
    # The same weights, read back from the checkpoint, and the same greedy answers.
    assert before == after_warm_up
    assert 0.3 <= before <= 0.6
    assert after - before >= 0.2
    assert f"; 0 of these occur in the {counts.training_rows} rows of training" in done.stdout
    if recipe == "verl":
        assert learnt(tmp_path / name) == learnt(by_our_file(tmp_path, "quickstart"))


def by_our_file(runs, name):
    """The directory of the same run, started with its YAML, and stopped at the same step."""
    words = [
        *("--ranks", "4", "--config", f"configs/run/{name}.yaml", "seed=5"),
        f"data.train.paths=[{runs}/data/rl.jsonl]",
        f"data.evaluation.paths=[{runs}/data/evaluation.jsonl]",
        f"model.path={runs}/quickstart_sft/checkpoints/latest",
        f"directory={runs}/ours",
    ]
    command = [sys.executable, "-m", "verl_hpc", "train", *words]
    for more in (["steps=40"], []):
        words = [*command, *more]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1700)
        assert done.returncode == 0, done.stdout + done.stderr
    return runs / "ours" / name
