"""Evaluation: what its scores are made into, and what it says of dropped prompts."""

import logging

import pytest

from tests.unit.trainer.runs import small_run
from verl_hpc.trainer.evaluate import evaluate, held_out_metrics


def test_a_prompt_that_was_dropped_counts_as_wrong():
    found = held_out_metrics([1.0, 0.5, 1.0, 0.1], 8)
    assert found == {
        "val/score/mean": 2.6 / 8,
        "val/accuracy": 0.25,
        "val/num_prompts": 8.0,
        "val/num_dropped": 4.0,
    }


@pytest.mark.parametrize("num_dropped", [0, 2])
def test_dropped_prompts_are_told(tmp_path, caplog, num_dropped):
    prompts = ["bb", "ef", "gk", "a"] + ["abcdef"] * num_dropped
    run = small_run(
        tmp_path, held_out=prompts, rollout__overlong_prompt="drop", evaluation__every=1
    )
    with caplog.at_level(logging.WARNING):
        metrics, groups = evaluate(run, 5)
    count = len(prompts)
    assert metrics["val/num_dropped"] == num_dropped
    assert metrics["val/num_prompts"] == count
    text = f"evaluation of step 5: {num_dropped} of {count} prompts dropped, longer than "
    text += "rollout.max_prompt_tokens = 3"
    assert (text in caplog.text) is bool(num_dropped)
    assert [group.prompt for group in groups] == prompts[:4]
    scores = [group.responses[0].score for group in groups]
    texts = [group.responses[0].text.rstrip(".") for group in groups]
    assert scores == [len(text) / 10 for text in texts]
    assert metrics["val/score/mean"] == pytest.approx(sum(scores) / count)


def test_only_as_many_prompts_as_asked(tmp_path):
    metrics, groups = evaluate(small_run(tmp_path, evaluation={"every": 1, "max_prompts": 2}), 1)
    assert (metrics["val/num_prompts"], len(groups)) == (2, 2)
