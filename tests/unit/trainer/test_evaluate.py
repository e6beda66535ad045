"""Evaluation: what its scores are made into, and what it says of dropped prompts."""

from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from verl_hpc.trainer import evaluate as module
from verl_hpc.trainer.evaluate import evaluate, held_out_metrics


def test_a_prompt_that_was_dropped_counts_as_wrong():
    found = held_out_metrics([1.0, 0.5, 1.0, 0.1], 8)
    assert found == {
        "val/score/mean": 2.6 / 8,
        "val/accuracy": 0.25,
        "val/num_prompts": 8.0,
        "val/num_dropped": 4.0,
    }


@pytest.mark.parametrize(
    ("num_answered", "rank", "told"), [(6, 0, True), (6, 1, False), (8, 0, False)]
)
def test_dropped_prompts_are_told(monkeypatch, caplog, num_answered, rank, told):
    monkeypatch.setattr(module, "respond", lambda *_: None)
    monkeypatch.setattr(module, "score", lambda *_: SimpleNamespace(values=[1.0] * num_answered))
    config = parse(rollout__max_prompt_tokens=64)
    workers = SimpleNamespace(config=config, rank=rank, evaluation_source=range(8))
    assert evaluate(workers, 5)["val/num_dropped"] == 8 - num_answered
    text = (
        "evaluation of step 5: 2 of 8 prompts dropped, longer than rollout.max_prompt_tokens = 64"
    )
    assert (text in caplog.text) is told
    assert bool(caplog.records) is told
