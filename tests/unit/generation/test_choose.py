"""Tokens of a step that are trained on: samples left out, weights, the loss's own choice."""

from itertools import chain

import pytest
import torch

from tests.unit.config.trees import parse
from tests.unit.step.operators.batches import MASKS, PLACE, column, per_token, samples, sequences
from tests.unit.trainer.runs import loop, recipe_of, small_run
from verl_hpc.algorithms.losses.clip_cov import ClipCov
from verl_hpc.algorithms.losses.ppo_clip import PpoClip
from verl_hpc.errors import ConfigError, FlowError
from verl_hpc.generation.choose import choose_tokens, select_tokens, shape_scores
from verl_hpc.step.batch import Sample, Samples, Scores, StepRows
from verl_hpc.step.operators.optimise import OptimiseSettings
from verl_hpc.step.operators.update import PolicySettings

NOTHING = [[0] * len(mask) for mask in MASKS]


def cut(*which):
    found = samples()
    rows = [
        Sample(s.index, s.group, s.prompt_length, s.response_length, i in which)
        for i, s in enumerate(found)
    ]
    return Samples(tuple(rows), found.owners, found.mini_batches)


WITHOUT_CUT = {"leave_out": True}


def choose(scores=(1.0, 0.0, 0.5), of=None, **algorithm):
    given = sequences()
    given.values["rollout_log_probs"] = per_token(3)
    old = column(old_log_probs=per_token(4))
    config = parse(algorithm=algorithm)
    return choose_tokens(PLACE, config, of or samples(), given, old, Scores(list(scores)))


def lists(rows):
    return [row.tolist() for row in rows]


def test_responses_that_were_cut():
    found, metrics = choose(of=cut(1), overlong=WITHOUT_CUT)
    assert lists(found["mask"]) == [MASKS[0], NOTHING[1], MASKS[2]]
    assert metrics == {"batch/samples_left_out": pytest.approx(1 / 3)}


def test_prompts_whose_responses_have_one_score():
    """The third response is the only one to its prompt, and equals itself."""
    found, metrics = choose((0.5, 0.5, 1.0), drop_equal_groups=True)
    assert lists(found["mask"]) == NOTHING
    assert metrics == {"batch/equal_groups": 1.0, "batch/samples_left_out": 1.0}
    found, metrics = choose((0.5, 0.25, 1.0), drop_equal_groups=True)
    assert lists(found["mask"]) == [MASKS[0], MASKS[1], NOTHING[2]]
    assert metrics["batch/equal_groups"] == 0.5


def test_weights_are_of_what_is_left():
    weighed, metrics = choose(of=cut(0), overlong=WITHOUT_CUT, correction={"upper": 1.5})
    expected = [
        [min(float(torch.exp(o - s)), 1.5) * m * (i != 0) for o, s, m in zip(*rows, strict=True)]
        for i, rows in enumerate(zip(per_token(4), per_token(3), MASKS, strict=True))
    ]
    for row, values in zip(weighed["weights"], expected, strict=True):
        assert row.tolist() == pytest.approx(values, abs=1e-6)
    kept = zip(chain(*expected[1:]), chain(*MASKS[1:]), strict=True)
    left = [weight for weight, trained in kept if trained]
    assert metrics["actor/correction_weight"] == pytest.approx(sum(left) / len(left), abs=1e-6)


def select(loss=None, top=1.0, trained=None, step=1):
    given = column(old_log_probs=per_token(4), entropy=per_token(9))
    columns = sequences(), given, column(advantages=per_token(5)), trained
    steps = OptimiseSettings(parse(algorithm__top_entropy=top), 1, "token-mean")
    settings = PolicySettings(loss or PpoClip(), steps)
    return select_tokens(PLACE, settings, StepRows(step, [0, 1]), samples(), *columns)


def test_tokens_of_the_highest_entropy():
    rows = enumerate(per_token(9))
    entropies = sorted(
        (float(e), i, t) for i, row in rows for t, e in enumerate(row) if MASKS[i][t]
    )
    chosen, metrics = select(top=0.5)  # of 7
    expected = [[0] * len(mask) for mask in MASKS]
    for _, i, t in entropies[-3:]:
        expected[i][t] = 1
    assert (lists(chosen["mask"]), metrics) == (expected, {"actor/top_entropy_tokens": 3.0})
    only = column(mask=[torch.tensor(mask) for mask in (MASKS[0], *NOTHING[1:])])
    chosen, _ = select(top=1e-9, trained=only)
    assert sum(sum(row) for row in lists(chosen["mask"])) == 1
    assert lists(chosen["mask"])[1:] == NOTHING[1:]


def test_random_tokens_depend_on_step_and_sample_alone():
    loss = ClipCov(share=0.3, lower=-100.0, upper=100.0)
    first, again, later = (lists(select(loss, step=step)[0]["selected"]) for step in (1, 1, 2))
    assert first == again != later
    assert sum(map(sum, first)) == 2  # of 7 tokens
    assert all(s <= m for s, m in zip(chain(*first), chain(*MASKS), strict=True))


def test_long_responses_lose_points():
    overlong = {"buffer": 4, "factor": 2.0}
    config = parse(algorithm__overlong=overlong, rollout__max_response_tokens=6)
    found, metrics = shape_scores(PLACE, config, samples(), Scores([1.0, 0.0, 0.5]))
    assert found.values == pytest.approx([1.0 - 3 / 4 * 2, 0.0, 0.5 - 2 / 4 * 2])
    assert metrics == {"reward/overlong_penalty": pytest.approx(-(1.5 + 1.0) / 3)}
    listed = Scores([1.0, 0.0, 0.5], per_token={0: {2: 1.0}})
    found, _ = shape_scores(PLACE, config, samples(), listed)
    assert found.per_token == listed.per_token, "the penalty is for the end of the response"


ASKED = {
    "correction": {"weights": "sequence"},
    "drop_equal_groups": True,
    "overlong": {"buffer": 2, "leave_out": True},
    "top_entropy": 0.5,
    "loss": {"name": "clip_cov", "lower": -9.0, "upper": 9.0},
}
METRICS = (
    *("actor/correction_weight", "batch/equal_groups", "reward/overlong_penalty"),
    *("actor/top_entropy_tokens", "actor/pg_clipfrac_ratio"),
)


@pytest.mark.parametrize("advantage", ["grpo", "gae"])
def test_a_run_that_asks_for_all_of_it(tmp_path, advantage):
    algorithm = ASKED | {"advantage": {"name": advantage}}
    result, lines = loop(small_run(tmp_path, steps=2, algorithm=algorithm, held_out=None))
    assert result.outcome == "finished"
    assert all(name in lines[0] for name in METRICS)
    assert all(line["rollout_corr/kl"] == pytest.approx(0, abs=1e-5) for line in lines)


def test_a_step_of_which_nothing_is_trained_on(tmp_path):
    """Every response has one score: there is no optimizer step, which is counted."""
    (tmp_path / "same.py").write_text("def score(response, ground_truth):\n    return 1.0\n")
    changes = {"algorithm__drop_equal_groups": True, "batch__mini_batches": 2, "held_out": None}
    run = small_run(tmp_path, steps=2, reward__function=f"{tmp_path}/same.py:score", **changes)
    before = {n: w.clone() for n, w in run.roles["actor"].training.weights.items()}
    result, lines = loop(run)
    assert result.outcome == "finished"
    assert [line["actor/num_empty"] for line in lines] == [2.0, 2.0]
    assert "actor/loss" not in lines[0]
    after = run.roles["actor"].training.weights
    assert all(torch.equal(before[name], after[name]) for name in before)


OWN = """
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.update import update_actor
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import add_log_probs, add_responses, add_scores

def mine(run):
    recipe = Recipe("mine", run)
    add_responses(recipe, run)
    add_scores(recipe, run)
    add_log_probs(recipe, run)
    recipe.operator(advantages, settings=run.settings.advantage, place="actor")
    return recipe.operator(update_actor, roles=["actor"], settings=run.settings.policy)
"""


@pytest.mark.parametrize("name", ASKED)
def test_a_recipe_of_the_users_that_leaves_it_out_is_refused(tmp_path, name):
    (tmp_path / "own.py").write_text(OWN)
    recipe = f"{tmp_path}/own.py:mine"
    run = small_run(tmp_path, recipe=recipe, algorithm={name: ASKED[name]})
    with pytest.raises(FlowError, match="asks for .* no operator gives; add "):
        recipe_of(run)


@pytest.mark.parametrize("name", ["overlong", "drop_equal_groups", "top_entropy"])
def test_what_chooses_tokens_of_responses_needs_some(tmp_path, name):
    with pytest.raises(ConfigError, match=f"algorithm.{name} has no effect with recipe: sft"):
        small_run(tmp_path, recipe="sft", algorithm={name: ASKED[name]})


def test_a_mismatch_can_be_corrected_instead_of_stopping(tmp_path):
    def run(name, **verify):
        tolerance = {"probe_tolerance": 1e-9}
        return small_run(tmp_path, name=name, steps=1, rollout__verify=tolerance | verify)

    _, lines = loop(run("corrected", on_mismatch="correct"))
    assert lines[0]["actor/correction_weight"] == pytest.approx(1, abs=1e-4)
    _, lines = loop(run("told", on_mismatch="warn"))
    assert "actor/correction_weight" not in lines[0]
    words = "rollout.verify.on_mismatch = correct with algorithm.old_log_probs = rollout"
    with pytest.raises(ConfigError, match=words):
        small_run(
            tmp_path, rollout__verify={"on_mismatch": "correct"}, algorithm__old_log_probs="rollout"
        )
