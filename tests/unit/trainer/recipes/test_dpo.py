"""Recipe dpo in this process: what it learns, what it computes, and what it refuses."""

import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from tests.unit.trainer.recipes.letter_pairs import GENERATED, letter_pairs, split, write
from tests.unit.trainer.runs import assert_same_for_micro_batches, block, loop, recipe_of, small_run
from verl_hpc.algorithms import preferences
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.preference import PreferenceLoss
from verl_hpc.errors import ConfigError, DataError, TrainingError
from verl_hpc.testing.local_run import engine_of
from verl_hpc.trainer.state import START

PAGE = Path(__file__).parents[4] / "docs/algorithms.md"
LOSSES = members(preferences, PreferenceLoss)


def dpo_run(directory, rows=None, held_out=16, loss=None, **changes):
    train, rest = split(rows or letter_pairs(48), held_out)
    given = {
        "recipe": "dpo",
        "algorithm__preference": loss or {"name": "dpo"},
        "data__train": write(directory, "pairs.jsonl", train),
        "data__evaluation": write(directory, "more.jsonl", rest),
        "evaluation__every": 1,
        "batch__size": 8,
        "optimizer__lr": 5e-2,
        "rollout__engine": "none",
    }
    return small_run(directory, **given | changes)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_learns_to_prefer(tmp_path, name):
    run = dpo_run(tmp_path, loss={"name": name}, steps=16, evaluation__every=16)
    engine_of(run, "actor").micro_batch = 16
    reference = [] if LOSSES[name].reference_free else ["reference"]
    assert [*run.roles] == ["actor", *reference] and run.rollout is None
    _, lines = loop(run)
    first, last = lines[0], lines[-1]
    assert last["rewards/accuracies"] > 0.9
    assert last["rewards/margins"] > max(first["rewards/margins"], 0)
    expected = pytest.approx(last["rewards/chosen"] - last["rewards/rejected"], abs=1e-5)
    assert last["rewards/margins"] == expected
    assert (last["val/accuracy"], last["val/num_prompts"]) == (pytest.approx(1, abs=0.1), 16.0)
    assert last["val/margin"] > 0


def test_the_first_step_by_hand(tmp_path):
    """A policy that is its own reference: every log-ratio is 0."""
    run = dpo_run(tmp_path, steps=1, evaluation__at_start=True)
    engine, rows = engine_of(run, "actor"), run.problems.train
    before = {n: w.clone() for n, w in engine.weights.items()}
    _, lines = loop(run)
    start, line = lines
    assert (start["val/accuracy"], start["val/margin"]) == (0.0, 0.0)
    assert line["preference/loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert line["rewards/chosen"] == line["rewards/margins"] == line["rewards/accuracies"] == 0.0
    taken, _ = run.order.take(START.position, 8)
    for weight, old in zip(engine.weights.values(), before.values(), strict=True):
        weight.copy_(old)
    for name in ("chosen", "rejected"):
        total = 0.0
        for row in taken:
            problem = rows[row]
            answer = problem.answer if name == "chosen" else problem.rejected
            prompt, ids = (run.tokenizer.encode(t) for t in (problem.prompt, answer))
            log_probs = engine.infer([torch.tensor([*prompt, *ids, 0])])[0].log_probs
            total += float(log_probs[len(prompt) - 1 :].sum())
        assert line[f"logps/{name}"] == pytest.approx(total / 8, rel=1e-5)


@pytest.mark.parametrize("loss", [{"name": "dpo", "sft_weight": 0.5}, {"name": "orpo"}])
def test_results_do_not_depend_on_the_split_into_micro_batches(tmp_path, loss):
    names = ("preference/loss", "actor/grad_norm", "preference/nll_loss", "rewards/margins")
    make = partial(dpo_run, tmp_path, loss=loss, steps=3)
    assert_same_for_micro_batches(make, (2, 6, 16), names)


def test_imitation_of_the_chosen_answer_is_part_of_the_loss(tmp_path):
    first = {}
    for weight in (0.0, 2.0):
        loss = {"name": "dpo", "sft_weight": weight}
        first[weight] = loop(dpo_run(tmp_path, loss=loss, steps=1, name=f"by-{weight}"))[1][0]
    assert "preference/nll_loss" not in first[0.0] and first[2.0]["preference/nll_loss"] > 0
    assert first[2.0]["preference/loss"] == pytest.approx(
        first[0.0]["preference/loss"] + 2 * first[2.0]["preference/nll_loss"], rel=1e-6
    )


def test_the_reference_may_be_another_model(tmp_path):
    """Its path is its own, and so are its weights; here another seed's."""
    run = dpo_run(tmp_path, steps=1, roles={"reference": {"path": "models/other"}})
    assert run.roles["reference"].shared is None
    _, lines = loop(run)
    assert lines[0]["rewards/chosen"] != 0.0 != lines[0]["rewards/margins"]


def test_a_pair_that_is_one_when_cut_is_counted(tmp_path, caplog):
    rows = letter_pairs(8)
    rows[0] |= {"chosen": "cccccca", "rejected": "ccccccb"}
    run = dpo_run(tmp_path, rows, held_out=4, steps=1, batch__size=4, data__shuffle=False)
    _, lines = loop(run)
    assert lines[0]["response_length/num_same_pairs"] == 1.0
    assert "step 1: both answers of 1 of 4 pairs are the same tokens" in caplog.text


def test_a_mini_batch_whose_pairs_are_all_dropped(tmp_path):
    rows = letter_pairs(8)
    for row in rows[:2]:
        row["prompt"] += "cccc"
    changes = {"batch__size": 4, "batch__mini_batches": 4, "rollout__overlong_prompt": "drop"}
    line = loop(dpo_run(tmp_path, rows, held_out=4, steps=1, data__shuffle=False, **changes))[1][0]
    assert line["prompt_length/num_dropped"] == 2.0
    # Of the two mini-batches that have a pair; the first is where it starts from.
    assert line["logps/chosen"] < 0 and line["preference/loss"] > 0


BAD_ROWS = {
    "no rejected": ({"prompt": "c", "chosen": "a"}, "no column 'rejected'; columns are .*; a pair"),
    "no chosen": ({"prompt": "c", "rejected": "a"}, "no column 'chosen'"),
    "null": ({"prompt": "c", "chosen": None, "rejected": "a"}, "chosen is null"),
    "equal": ({"prompt": "c", "chosen": "a", "rejected": "a"}, "chosen and .* same text, 'a'"),
}


@pytest.mark.parametrize(("row", "words"), BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("where", ["train", "evaluation"])
def test_a_row_without_a_pair_is_found_by_its_line(tmp_path, row, words, where):
    data = write(tmp_path, "bad.jsonl", [*letter_pairs(2, seed=9), row])
    with pytest.raises(DataError, match=f"{re.escape(str(tmp_path))}/bad.jsonl line 3: {words}"):
        dpo_run(tmp_path, **{f"data__{where}": data})


PREFERENCE = "algorithm__preference"
UNUSED = "no operator of recipe dpo uses this role"
REFUSED = [
    ("data__train", GENERATED, "kind = reasoning_gym: recipe dpo needs pairs of answers"),
    (PREFERENCE, {"name": "dop"}, "name = 'dop': must be one of .*dpo"),
    (PREFERENCE, {"name": "ipo", "gamma": 1.0}, "gamma: no such"),
    (PREFERENCE, {"name": "robust", "label_smoothing": 0.5}, "less than 0.5"),
    ("algorithm__kl", {"placement": "loss"}, "algorithm.kl has no effect with"),
    ("algorithm__loss", {"name": "gspo"}, "it reads algorithm.preference"),
    ("algorithm__kto", {"beta": 0.2}, "algorithm.kto has no effect with recipe: dpo"),
    ("roles", {"critic": {}}, UNUSED),
    ("roles", {"actor": {"trainable": False}}, "recipe dpo trains this role"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_settings_that_cannot_be_honoured(tmp_path, name, value, words):
    with pytest.raises(ConfigError, match=words):
        dpo_run(tmp_path, **{name: value})


def test_a_reference_is_refused_where_none_is_read_and_a_preference_in_other_recipes(tmp_path):
    with pytest.raises(ConfigError, match=UNUSED):
        dpo_run(tmp_path, loss={"name": "simpo"}, **WITH_REFERENCE)
    with pytest.raises(ConfigError, match="algorithm.preference has no effect with recipe: rl"):
        small_run(tmp_path, algorithm__preference={"name": "ipo"})


OWN = """
import torch
from verl_hpc.algorithms.preference import PreferenceLoss

class Slope(PreferenceLoss):
    scale: float = 1.0
    def __call__(self, chosen, rejected):
        return -self.scale * torch.tanh(chosen.log_ratios - rejected.log_ratios)

class Free(PreferenceLoss):
    reference_free = True
    def __call__(self, chosen, rejected):
        return torch.relu(1 - chosen.mean_log_probs + rejected.mean_log_probs)

class Mean(Free):
    def __call__(self, chosen, rejected):
        return super().__call__(chosen, rejected).mean()
"""
WITH_REFERENCE = {"roles": {"reference": {}}}


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "changes"), [("Slope", WITH_REFERENCE), ("Free", {})])
def test_a_loss_of_the_users(own, name, changes):
    run = dpo_run(own, loss={"name": f"own.py:{name}"}, steps=16, evaluation__every=16, **changes)
    _, lines = loop(run)
    assert lines[-1]["val/accuracy"] > 0.9


def test_the_loss_of_the_page(own):
    (own / "bounded.py").write_text(block(PAGE.read_text(), "python", "ounded"))
    settings = yaml.safe_load(block(PAGE.read_text(), "yaml", "ounded"))
    loss = settings.pop("algorithm")["preference"]
    _, lines = loop(dpo_run(own, loss=loss, steps=2, evaluation__every=0, **settings))
    assert lines[0]["preference/loss"] == 0.0 > lines[1]["preference/loss"]


UNFIT_LOSSES = [
    ({"name": "own.py:Slope"}, {}, r"give `roles: \{reference: \{\}\}`"),
    ({"name": "own.py:Free"}, WITH_REFERENCE, "leave roles.reference out"),
    ({"name": "own.py:Slope", "scael": 1.0}, WITH_REFERENCE, "scael: no such setting; did you"),
    ({"name": "own.py:Solpe"}, WITH_REFERENCE, "defines no 'Solpe'"),
]


@pytest.mark.parametrize(("loss", "changes", "words"), UNFIT_LOSSES)
def test_a_loss_of_the_users_that_cannot_be_used(own, loss, changes, words):
    run = dpo_run(own, loss=loss, **changes)
    with pytest.raises(ConfigError, match=words):
        recipe_of(run)


def test_a_loss_of_the_users_gives_one_a_pair(own):
    run = dpo_run(own, loss={"name": "own.py:Mean"}, steps=1)
    with pytest.raises(TrainingError, match=r"gives losses of shape \(\); expected \(1,\)"):
        loop(run)
