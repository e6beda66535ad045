"""Settings of every algorithm, and the table and the curves of made-up results."""

import pytest

from benchmarks import algorithms
from benchmarks.algorithms import ALGORITHMS, CONFIG
from benchmarks.launch import REPOSITORY
from verl_hpc.config.load import load_config


def result(name, seed, before, after, **changes):
    learned = {"before": before, "after": after, "curve": [[0, before], [6, after]], "steps": 6}
    rows = {"evaluation_prompts": 512, "training_rows": 60000, "shared_prompts": 0}
    return {"recipe": name, "seed": seed, "seconds": 90.0} | learned | rows | changes


RESULTS = [
    result("grpo", 0, 0.375, 0.575),
    result("grpo", 1, 0.350, 0.750),
    result("ppo", 0, 0.375, 0.475, seconds=150.0),
    result("ppo", 1, 0.350, 0.650, seconds=120.0),
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_settings_are_those_of_a_run(name, tmp_path):
    config = load_config(REPOSITORY / CONFIG, algorithms.settings(name, 3, 36, tmp_path))
    assert (config.name, config.seed, config.steps) == (name, 3, 36)
    assert config.run_directory == tmp_path / name
    assert (config.evaluation.every, config.evaluation.at_start) == (6, True)


def test_teachers_run_before_their_students():
    assert algorithms.wanted(["distillation", "ppo"]) == ["ppo", "grpo", "distillation"]
    assert algorithms.wanted(["ppo"]) == ["ppo"]


def test_a_row_an_algorithm_and_a_column_a_seed():
    assert algorithms.table(RESULTS).splitlines()[2:] == [
        "| after SFT | 0.375 | 0.350 |  |  |  |",
        "| PPO | 0.475 | 0.650 | +20.0 points | +10.0 | 2.2 |",
        "| GRPO | 0.575 | 0.750 | +30.0 points | +20.0 | 1.5 |",
    ]


def test_curves_are_means_of_seeds():
    assert algorithms.curves(RESULTS) == {
        "PPO": [(0, pytest.approx(0.3625)), (6, pytest.approx(0.5625))],
        "GRPO": [(0, pytest.approx(0.3625)), (6, pytest.approx(0.6625))],
    }


def test_a_run_whose_result_is_there_is_not_repeated(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(algorithms, "run", lambda command, *_: started.append(command) or 0.0)
    monkeypatch.setattr(algorithms, "learned", lambda *_: {"before": 0.0, "after": 1.0})
    first = algorithms.outcome("grpo", 0, 36, tmp_path)
    assert algorithms.outcome("grpo", 0, 36, tmp_path) == first
    assert len(started) == 1
    algorithms.outcome("grpo", 0, 12, tmp_path)
    assert len(started) == 2
