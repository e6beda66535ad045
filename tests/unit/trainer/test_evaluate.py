"""Evaluation: how answers are drawn, and what their scores are made into."""

import logging
import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trainer.runs import HELD_OUT, files, loop, recipe_of, small_run
from verl_hpc.errors import DataError, FlowError, RewardError
from verl_hpc.trainer.evaluate import evaluate, held_out_metrics, metrics_of_sets


def test_a_prompt_that_was_dropped_counts_as_wrong():
    found = held_out_metrics([[1.0], [0.5], [1.0], [0.1]], 8)
    assert found == {"score/mean": 2.6 / 8, "accuracy": 0.25, "num_prompts": 8, "num_dropped": 4}


@given(st.data(), st.integers(2, 6), st.integers(1, 4), st.integers(0, 3))
def test_metrics_of_sampled_answers_are_those_counted_by_hand(data, num_samples, answered, dropped):
    score = st.sampled_from([0.0, 0.5, 1.0, 2.0])
    rows = st.lists(score, min_size=num_samples, max_size=num_samples)
    answers = data.draw(st.lists(rows, min_size=answered, max_size=answered))
    metrics = held_out_metrics(answers, answered + dropped)
    everything = answers + [[0.0] * num_samples] * dropped
    flat = [value for row in everything for value in row]
    right = sum(value >= 1 for value in flat) / len(flat)
    expected = {"score/mean": sum(flat) / len(flat), "accuracy": right, f"avg@{num_samples}": right}
    for k in [int(name[5:]) for name in metrics if name.startswith("pass@")]:
        passes = [any(v >= 1 for v in some) for row in everything for some in combinations(row, k)]
        expected[f"pass@{k}"] = sum(passes) / len(passes)
    assert expected["pass@1"] == pytest.approx(right)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert {"pass@2", f"pass@{num_samples}"} <= set(metrics)


def test_the_first_set_has_the_names_of_a_run_with_one():
    sampled = held_out_metrics([[1.0, 0.0]], 1)
    found = metrics_of_sets({"first": sampled, "other": held_out_metrics([[0.0]], 1)})
    assert found["val/accuracy"] == found["val/first/accuracy"] == 0.5
    assert (found["val/other/accuracy"], found["val/first/pass@2"]) == (0.0, 1.0)
    assert not {"val/pass@2", "val/other/pass@1"} & set(found)
    assert metrics_of_sets({"": sampled})["val/avg@2"] == 0.5


def with_sets(directory, prompts=HELD_OUT, **sets):
    """A run that evaluates on sets of settings by name, each on its own copy of the prompts."""
    given = {
        name: {"source": files(directory, f"{name}.jsonl", prompts)} | chosen
        for name, chosen in sets.items()
    }
    return {"held_out": None, "evaluation": {"every": 1, "sets": given}}


def answers(directory, step=1, changes=None, **sets):
    """The answers to the prompts of the sets in turn, as texts."""
    run = small_run(directory, **with_sets(directory, **sets), **(changes or {}))
    _, groups = evaluate(run, step)
    return [[response.text for response in group.responses] for group in groups]


HOT = {"num_samples": 4, "temperature": 1.5}


def test_an_answer_is_of_its_run_set_row_and_number_alone(tmp_path):
    """Another step, more answers, and fewer prompts, leave the others as they are."""
    texts = answers(tmp_path, odd=HOT)
    assert [len(some) for some in texts] == [4, 4, 4]
    assert len({text for some in texts for text in some}) > 4
    assert answers(tmp_path, step=2, odd=HOT) == texts
    assert [t[:4] for t in answers(tmp_path, odd=HOT | {"num_samples": 6})] == texts
    assert answers(tmp_path, odd=HOT | {"max_prompts": 2}) == texts[:2]
    assert [t for t in answers(tmp_path, odd=HOT, greedy={}) if len(t) == 4] == texts
    assert answers(tmp_path, even=HOT) != texts
    assert answers(tmp_path, changes={"seed": 1}, odd=HOT) != texts


def test_greedy_answers_stand_beside_sampled_ones(tmp_path):
    run = small_run(tmp_path, **with_sets(tmp_path, greedy={"max_prompts": 2}, hot=HOT))
    metrics, groups = evaluate(run, 1)
    assert [len(group.responses) for group in groups] == [1, 4, 1, 4, 4]
    assert {"val/hot/avg@4", "val/hot/pass@1", "val/hot/pass@2", "val/hot/pass@4"} <= set(metrics)
    assert metrics["val/score/mean"] == metrics["val/greedy/score/mean"]
    assert (metrics["val/greedy/num_prompts"], metrics["val/hot/num_prompts"]) == (2, 3)
    scores = [r.score for group in groups for r in group.responses if len(group.responses) == 4]
    assert metrics["val/hot/score/mean"] == pytest.approx(sum(scores) / 12)


def test_a_set_has_its_own_reward_and_length(tmp_path):
    (tmp_path / "ones.py").write_text("def one(response, ground_truth):\n    return 1.0\n")
    own = {"reward": {"function": f"{tmp_path}/ones.py:one"}, "max_response_tokens": 9}
    run = small_run(tmp_path, **with_sets(tmp_path, plain=HOT, own=HOT | own))
    metrics, groups = evaluate(run, 1)
    assert metrics["val/own/accuracy"] == metrics["val/own/pass@1"] == 1.0
    assert metrics["val/plain/accuracy"] == 0.0
    lengths = [max(len(r.text.rstrip(".")) for r in group.responses) for group in groups]
    assert max(lengths[::2]) <= 5 < max(lengths[1::2]) <= 9


def test_a_run_goes_by_its_first_set(tmp_path):
    sets = with_sets(tmp_path, first=HOT, second={})
    sets["evaluation"]["stop_at"] = 0.0
    result, lines = loop(small_run(tmp_path, steps=3, **sets))
    assert (result.outcome, lines[-1]["step"]) == ("goal reached", 1)
    assert not math.isnan(lines[-1]["val/second/accuracy"])


def test_the_reward_of_a_set_is_loaded_before_anything_is_built(tmp_path):
    reward = {"function": f"{tmp_path}/none.py:one"}
    run = small_run(tmp_path, **with_sets(tmp_path, first={"reward": reward}))
    with pytest.raises(RewardError, match=r"none\.py"):
        recipe_of(run)


def test_a_set_all_of_whose_prompts_are_too_long_is_named(tmp_path):
    sets = with_sets(tmp_path, prompts=["abcdef"], long={})
    run = small_run(tmp_path, **sets, rollout__overlong_prompt="drop")
    with pytest.raises(DataError, match=r"every prompt of evaluation\.sets\.long\.source was"):
        evaluate(run, 1)


OWN = """
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import rl


def mine(run):
    recipe = rl(run)
    recipe.evaluation = Recipe("evaluation", run)
    return recipe
"""


def test_a_recipe_that_evaluates_by_itself_takes_no_sets(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    saves = {"evaluation": {"every": 1, "save_generations": True}}
    for changes, words in (
        (with_sets(tmp_path, first={}), r"sets \(first\) with recipe.*evaluates by a flow of its"),
        (saves, r"evaluation\.save_generations with recipe"),
    ):
        with pytest.raises(FlowError, match=words):
            recipe_of(small_run(tmp_path, recipe=f"{tmp_path}/own.py:mine", **changes))


GENERATES = """
import torch
from verl_hpc.step.batch import MASK, OLD_LOG_PROBS, ROLLOUT_LOG_PROBS
from verl_hpc.step.operators.assign import assign
from verl_hpc.generation.generate import generate
from verl_hpc.step.operators.infer import old_log_probs
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.step.operator import operator
from verl_hpc.trainer.recipes.rl import rl


@operator()
def compare(place, sequences, old):
    pairs = zip(sequences[ROLLOUT_LOG_PROBS], old[OLD_LOG_PROBS], strict=True)
    return (), {"val/apart": max(float((a - b).abs().max()) for a, b in pairs)}


def mine(run):
    recipe, settings = rl(run), run.settings
    own = recipe.evaluation = Recipe("evaluation", run)
    asks = settings.generate.greedily(settings.evaluation_problems, "evaluation")
    own.operator(generate, roles=["rollout"], settings=asks, name="answers", prefix="val/")
    own.operator(assign, settings=settings.assign, place="rollout", prefix="val/")
    own.operator(old_log_probs, roles=["actor"], settings=settings.old_log_probs, prefix="val/")
    own.operator(compare, place="actor")
    return recipe
"""


def test_a_recipe_that_evaluates_by_itself_generates_with_the_weights_of_its_step(tmp_path):
    (tmp_path / "own.py").write_text(GENERATES)
    evaluation = {"every": 1, "at_start": True}
    recipe = f"{tmp_path}/own.py:mine"
    _, found = loop(small_run(tmp_path, recipe=recipe, steps=3, evaluation=evaluation))
    apart = [line["val/apart"] for line in found if "val/apart" in line]
    assert len(apart) == 4 and max(apart) < 1e-5


@pytest.mark.parametrize("num_dropped", [0, 2])
def test_dropped_prompts_are_told(tmp_path, caplog, num_dropped):
    prompts = ["bb", "ef", "gk", "a"] + ["abcdef"] * num_dropped
    changes = {"rollout__overlong_prompt": "drop", "evaluation__every": 1}
    run = small_run(tmp_path, held_out=prompts, **changes)
    with caplog.at_level(logging.WARNING):
        metrics, groups = evaluate(run, 5)
    count = len(prompts)
    assert (metrics["val/num_dropped"], metrics["val/num_prompts"]) == (num_dropped, count)
    text = f"evaluation of step 5: {num_dropped} of {count} prompts dropped, longer than "
    assert (f"{text}rollout.max_prompt_tokens = 3" in caplog.text) is bool(num_dropped)
    assert [group.prompt for group in groups] == prompts[:4]
    scores = [group.responses[0].score for group in groups]
    assert scores == [len(group.responses[0].text.rstrip(".")) / 10 for group in groups]
    assert metrics["val/score/mean"] == pytest.approx(sum(scores) / count)


def test_only_as_many_prompts_as_asked(tmp_path):
    metrics, groups = evaluate(small_run(tmp_path, evaluation={"every": 1, "max_prompts": 2}), 1)
    assert (metrics["val/num_prompts"], len(groups)) == (2, 2)
