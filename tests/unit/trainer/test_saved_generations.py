"""Every answer of an evaluation is in its file, whoever gave it."""

import logging

import pytest

from tests.unit.trainer.runs import files, loop, small_run
from verl_hpc.metrics.generations import generation_steps, read_generations
from verl_hpc.metrics.samples import read_samples
from verl_hpc.trainer.evaluate import evaluate

HOT = {"num_samples": 3, "temperature": 1.5}
REWARD = """
def score(response, ground_truth):
    return {"score": len(response) / 10, "length": len(response)}
"""


def run_with_sets(directory, **changes):
    (directory / "figures.py").write_text(REWARD)
    prompts = {"hot": ["bb", "abcdef", "ef"], "greedy": ["gk"]}
    sets = {n: {"source": files(directory, f"{n}.jsonl", rows)} for n, rows in prompts.items()}
    sets["hot"] |= HOT
    given = {
        "held_out": None,
        "rollout__overlong_prompt": "drop",
        "reward__function": f"{directory}/figures.py:score",
        "evaluation": {"every": 1, "save_generations": True, "sets": sets},
    }
    return small_run(directory, **given | changes)


def test_every_answer_is_there_with_its_score_and_figures(tmp_path):
    run = run_with_sets(tmp_path)
    metrics, groups = evaluate(run, 4)
    generations = list(read_generations(run.config.run_directory, 4))
    expected = [*(("hot", row, sample) for row in (0, 2) for sample in range(3)), ("greedy", 0, 0)]
    assert [(g.set, g.row, g.sample) for g in generations] == expected, (
        "row 1 was dropped for its length"
    )
    of_hot = [g.score for g in generations if g.set == "hot"]
    assert metrics["val/hot/score/mean"] == pytest.approx(sum(of_hot) / 9)
    assert metrics["val/hot/num_dropped"] == 1
    for generation in generations:
        assert generation.extra == {"length": 10 * generation.score}
        assert generation.prompt == {0: "bb", 2: "ef"}.get(generation.row) or "gk"
        assert generation.ground_truth == generation.prompt[::-1]
        assert generation.truncated != generation.response.endswith(".")
        assert generation.stop_reason == ("length" if generation.truncated else ".")
        assert 1 <= generation.num_tokens <= 5
    shown = {(r.text, r.stop_reason) for group in groups for r in group.responses}
    assert shown == {(g.response, g.stop_reason) for g in generations}


def test_none_is_saved_unless_that_is_asked(tmp_path):
    run = small_run(tmp_path, evaluation={"every": 1})
    evaluate(run, 1)
    assert generation_steps(run.config.run_directory) == []


def test_a_run_leaves_those_of_each_evaluation_and_starts_over_without(tmp_path):
    saved = {"every": 2, "at_start": True, "save_generations": True}
    run = small_run(tmp_path, steps=3, evaluation=saved)
    loop(run)
    assert generation_steps(run.config.run_directory) == [0, 2, 3]
    assert [g.set for g in read_generations(run.config.run_directory, 3)] == ["evaluation"] * 3
    loop(small_run(tmp_path, steps=1, evaluation=saved | {"every": 5, "at_start": False}))
    assert generation_steps(run.config.run_directory) == [1]


def test_a_disk_that_is_full_ends_no_run(tmp_path, caplog):
    run = run_with_sets(tmp_path)
    (run.config.run_directory / "evaluations").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        metrics, _ = evaluate(run, 4)
    assert "the answers of the evaluation of step 4 are not saved: " in caplog.text
    assert metrics["val/hot/num_prompts"] == 3


def test_samples_to_look_at_are_of_all_sets(tmp_path):
    run = run_with_sets(tmp_path, steps=1)
    loop(run)
    groups = read_samples(run.config.run_directory, 1)["evaluation"]
    assert [group.prompt for group in groups] == ["bb", "gk", "ef"]
