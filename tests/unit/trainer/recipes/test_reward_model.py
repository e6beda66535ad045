"""A reward model that learns from pairs, in this process."""

import json
import re

import pytest

from tests.unit.trainer.runs import loop, small_run
from verl_hpc.errors import ConfigError, DataError

PAIRS = [("ab", "ca", "b"), ("cd", "a", "db"), ("ab", "aa", "c"), ("k", "ba", "dd")]
"""An answer with an a is better."""


def pairs(directory, name, rows):
    keys = ("prompt", "chosen", "rejected")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    (directory / name).write_text("\n".join(lines), encoding="utf-8")
    return {"kind": "files", "paths": [str(directory / name)]}


def reward_run(directory, train=PAIRS, **changes):
    given = {
        "recipe": "reward_model",
        "data__train": pairs(directory, "pairs.jsonl", train),
        "data__evaluation": pairs(directory, "more.jsonl", [("da", "a", "d"), ("bb", "d", "a")]),
        "evaluation__every": 1,
        "batch__size": 4,
    }
    return small_run(directory, **given | changes)


def test_it_learns_which_answers_are_better(tmp_path):
    run = reward_run(tmp_path, steps=30, optimizer__lr=5e-2)
    assert [*run.roles] == ["reward"] and run.rollout is None
    _, lines = loop(run)
    first, last = lines[0], lines[-1]
    assert last["reward/loss"] < 0.1 < first["reward/loss"]
    assert last["reward/accuracy"] == 1.0
    # Of the two held-out pairs one has the better answer second.
    assert (last["val/accuracy"], last["val/num_prompts"]) == (0.5, 2.0)
    # Lengths are of the step's answers; those of the evaluation are shorter.
    assert (last["response_length/mean"], last["val/response_length/mean"]) == (21 / 8, 2.0)


def test_mini_batches_hold_whole_pairs(tmp_path):
    _, (line,) = loop(reward_run(tmp_path, steps=1, batch__mini_batches=4, evaluation__every=0))
    assert 0 <= line["reward/accuracy"] <= 1 and line["reward/accuracy"] * 4 % 1 == 0
    with pytest.raises(ConfigError, match="mini_batches = 3 does not divide the 4"):
        reward_run(tmp_path, batch__mini_batches=3)


def test_rows_without_a_pair_are_refused(tmp_path):
    where = re.escape(str(tmp_path / "train.jsonl"))
    with pytest.raises(DataError, match=f"{where} line 1: no column 'chosen'"):
        reward_run(tmp_path, data__train={"kind": "files", "paths": [f"{tmp_path}/train.jsonl"]})
    generated = {"kind": "reasoning_gym", "task": "chain_sum", "size": 4}
    with pytest.raises(ConfigError, match="kind = reasoning_gym: recipe reward_model needs pairs"):
        reward_run(tmp_path, data__train=generated)
