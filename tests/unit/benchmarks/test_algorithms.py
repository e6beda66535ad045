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


def test_what_each_of_them_changes():
    rows = algorithms.settings_table(["rloo", "distillation"]).splitlines()[3:]
    assert rows == [
        "| RLOO | `algorithm.advantage.name=rloo` |",
        "| on-policy distillation | `recipe=distillation`, `roles.teacher.path`: what GRPO made |",
    ]


def test_preferences_before_and_after():
    shares = {"preferred": [[0, 0.25], [6, 0.5], [12, 0.75]]}
    text = algorithms.preferences([*RESULTS, result("dpo", 4, 0.375, 0.5, **shares)])
    assert text.endswith("before and after. seed 4: 0.250, then 0.750.")
    assert algorithms.preferences(RESULTS) == ""


def test_the_caption_counts_the_problems_that_occur_in_training():
    shared = [*RESULTS, result("rloo", 0, 0.375, 0.5, shared_prompts=2)]
    text = algorithms.caption(shared, [60.0, 60.0])
    assert "2 of them occur in the 60,000 rows" in text
    assert "all 5 runs and 2 warm-ups took 11" in text


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
