"""Recipe kto in this process: what it learns, what it computes, and what it refuses."""

import math
import re
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.conftest import write_parquet
from tests.unit.trainer.recipes.letter_pairs import GENERATED, labelled, letter_pairs, split, write
from tests.unit.trainer.runs import assert_same_for_micro_batches, loop, small_run
from verl_hpc.errors import ConfigError, DataError
from verl_hpc.step.operators.labelled import others
from verl_hpc.testing.local_run import engine_of


def kto_run(directory, rows=None, **changes):
    train, rest = split(letter_pairs(48), 16)
    rows = labelled(train) if rows is None else rows
    Random(0).shuffle(rows)
    given = {
        "recipe": "kto",
        "data__train": write(directory, "labelled.jsonl", rows),
        "data__evaluation": write(directory, "pairs.jsonl", rest),
        "evaluation__every": 1,
        "batch__size": 16,
        "optimizer__lr": 5e-2,
        "rollout__engine": "none",
    }
    return small_run(directory, **given | changes)


def test_it_learns_which_answers_are_good(tmp_path):
    run = kto_run(tmp_path, steps=16, evaluation__every=16, evaluation__at_start=True)
    assert [*run.roles] == ["actor", "reference"] and run.rollout is None
    engine_of(run, "actor").micro_batch = 16
    _, lines = loop(run)
    first, last = lines[0], lines[-1]
    assert first["val/accuracy"] == 0.0 and last["val/accuracy"] > 0.9
    assert last["val/margin"] > 0 and last["val/num_prompts"] == 16.0
    assert last["rewards/chosen"] > 0 > last["rewards/rejected"]
    assert last["rewards/margins"] == last["rewards/chosen"] - last["rewards/rejected"]
    assert last["preference/loss"] < 0.5 and last["kto/num_one_kind"] == 0.0


def log_prob(run, engine, prompt, answer):
    prompt, answer = run.tokenizer.encode(prompt), run.tokenizer.encode(answer)
    found = engine.infer([torch.tensor([*prompt, *answer, 0])])[0].log_probs
    return float(found[len(prompt) - 1 :].sum())


def test_a_step_by_hand(tmp_path):
    """Two optimizer steps, the second of which starts from another policy than the reference."""
    train = labelled(letter_pairs(4, seed=3))
    rows = [train[i] for i in (0, 3, 4, 6, 1, 7, 2, 5)]
    given = {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.1}
    changes = {"algorithm__kto": given, "data__shuffle": False, "batch__size": 4}
    data = write(tmp_path, "rows.jsonl", rows)
    run = kto_run(tmp_path, data__train=data, steps=2, evaluation__every=0, **changes)
    before = kto_run(tmp_path, data__train=data, steps=1, evaluation__every=0, **changes, name="b")
    _, lines = loop(run)
    loop(before)
    policy = engine_of(before, "actor")  # as it was before the second step
    first = before.roles["reference"].shared

    def log_ratio(prompt, answer):
        return log_prob(run, policy, prompt, answer) - log_prob(run, first, prompt, answer)

    seen = rows[4:]
    # Each prompt with the answer of the next row; the last with that of the first.
    mismatched = [
        log_ratio(row["prompt"], seen[(i + 1) % 4]["completion"]) for i, row in enumerate(seen)
    ]
    assert len({row["prompt"] for row in seen}) == 4
    kl = max(0.0, sum(mismatched) / 4)
    losses = []
    for row in seen:
        gain = 0.5 * (log_ratio(row["prompt"], row["completion"]) - kl)
        weight, sign = (1.5, 1) if row["label"] else (0.1, -1)
        losses.append(weight * (1 - 1 / (1 + math.exp(-sign * gain))))
    assert kl > 0.01
    assert lines[1]["kto/kl"] == pytest.approx(kl, rel=1e-4, abs=1e-5)
    assert lines[1]["preference/loss"] == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert lines[0]["kto/kl"] == 0.0
    assert lines[1]["kto/desirable"] == sum(row["label"] for row in seen) / 4
    good = [row for row in seen if row["label"]]
    expected = sum(0.5 * log_ratio(row["prompt"], row["completion"]) for row in good) / len(good)
    assert lines[1]["rewards/chosen"] == pytest.approx(expected, rel=1e-4)


def test_results_do_not_depend_on_the_split_into_micro_batches(tmp_path):
    weights = {"desirable_weight": 2.0, "undesirable_weight": 0.2}
    make = partial(kto_run, tmp_path, algorithm__kto=weights, batch__mini_batches=2, steps=3)
    names = ("preference/loss", "actor/grad_norm", "kto/kl", "rewards/chosen")
    assert assert_same_for_micro_batches(make, (1, 3, 32), names)[-1]["kto/kl"] > 0.01


@pytest.mark.parametrize(
    ("kind", "there", "gone"), [(True, "chosen", "rejected"), (False, "rejected", "chosen")]
)
def test_answers_of_one_kind_train_and_are_counted(tmp_path, kind, there, gone):
    rows = [row for row in labelled(letter_pairs(8, seed=2)) if row["label"] is kind]
    _, lines = loop(kto_run(tmp_path, rows, steps=2, batch__size=4, batch__mini_batches=2))
    for line in lines:
        assert (line["kto/num_one_kind"], line["kto/desirable"]) == (2.0, float(kind))
        assert f"rewards/{there}" in line and f"logps/{there}" in line
        assert f"rewards/{gone}" not in line and "rewards/margins" not in line
        assert line["actor/grad_norm"] > 0


def test_prompts_that_are_all_the_same_are_counted(tmp_path):
    rows = [{"prompt": "cd", "answer": a, "label": a == "a"} for a in "abcd"]
    assert loop(kto_run(tmp_path, rows, steps=1, batch__size=4))[1][0]["kto/num_same_prompt"] == 4.0


def test_a_mini_batch_whose_answers_are_all_dropped(tmp_path):
    rows = [{"prompt": "c" * n, "answer": "a", "label": True} for n in (9, 8, 7, 2)]
    changes = {"batch__size": 4, "batch__mini_batches": 2, "rollout__overlong_prompt": "drop"}
    line = loop(kto_run(tmp_path, rows, steps=1, **changes))[1][0]
    assert line["prompt_length/num_dropped"] == 3.0
    assert (line["kto/num_one_kind"], line["kto/desirable"]) == (1.0, 1.0)


@given(st.text("abc", max_size=6))
def test_others_are_the_next_that_differ(prompts):
    size = len(prompts)
    expected = [
        next((j % size for j in range(i + 1, i + size) if prompts[j % size] != prompts[i]), None)
        for i in range(size)
    ]
    if size and expected[0] is None:  # all are the same, and each takes the next
        expected = [(i + 1) % size for i in range(size)]
    assert others([[ord(letter)] for letter in prompts]) == expected


CHAT = [{"role": "user", "content": "c"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("column", ["answer", "response", "completion"])
def test_an_answer_is_a_text_or_a_chat(tmp_path, column):
    rows = [{"prompt": p, column: a, "label": p == "cd"} for p, a in (("cd", "ab"), ("c", CHAT))]
    run = kto_run(tmp_path, rows, data__chat="never", steps=1, batch__size=2)
    problems = [run.problems.train[i] for i in range(2)]
    expected = [("cd", "ab", True), (CHAT[:1], CHAT[1:], False)]
    assert [(p.prompt, p.answer, p.label) for p in problems] == expected


def test_rows_of_parquet(tmp_path):
    rows = labelled(letter_pairs(2, seed=5))
    path = write_parquet(tmp_path / "rows.parquet", rows)
    run = kto_run(tmp_path, data__train={"kind": "files", "paths": [str(path)]}, steps=1)
    assert [run.problems.train[i].label for i in range(4)] == [row["label"] for row in rows]


ROW = {"prompt": "c", "answer": "a", "label": True}
BAD_ROWS = {
    "no label": ({"prompt": "c", "answer": "a"}, "no column 'label'; .* true or false"),
    "null label": (ROW | {"label": None}, "label is null; expected true"),
    "a number": (ROW | {"label": 1}, "label is int 1; expected true"),
    "a word": (ROW | {"label": "good"}, "label is str 'good'"),
    "no answer": ({"prompt": "c", "label": True}, "no answer in any of completion, answer, resp"),
    "an empty chat": (ROW | {"answer": []}, "answer is empty"),
}


@pytest.mark.parametrize(("row", "words"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_row_without_an_answer_or_a_label_is_found_by_its_line(tmp_path, row, words):
    data = write(tmp_path, "bad.jsonl", [ROW, row])
    with pytest.raises(DataError, match=f"{re.escape(str(tmp_path))}/bad.jsonl line 2: {words}"):
        kto_run(tmp_path, data__train=data)


def test_evaluation_is_on_pairs(tmp_path):
    data = write(tmp_path, "held_out.jsonl", labelled(letter_pairs(2, seed=9)))
    with pytest.raises(DataError, match="held_out.jsonl line 1: no column 'chosen'; .* a pair"):
        kto_run(tmp_path, data__evaluation=data)


REFUSED = [
    ("data__train", GENERATED, "recipe kto needs answers with labels"),
    ("data__evaluation", GENERATED, "recipe kto needs pairs of answers"),
    ("batch__mini_batches", 16, "batch.size = 16 with batch.mini_batches = 16"),
    ("algorithm__preference", {"name": "ipo"}, "algorithm.preference has no"),
    ("algorithm__kto", {"desirable_weight": -1.0}, "greater than or equal to 0"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_settings_that_cannot_be_honoured(tmp_path, name, value, words):
    with pytest.raises(ConfigError, match=words):
        kto_run(tmp_path, **{name: value})
