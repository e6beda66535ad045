"""Recipes of a user's own: an operator, a role and a column in a file; and what is refused."""

import pytest
import torch

from tests.unit.trainer.runs import loop, recipe_of, small_run
from verl_hpc.errors import FlowError
from verl_hpc.generation.generate import generate
from verl_hpc.placement.layouts import Pool
from verl_hpc.step import batch
from verl_hpc.step.operator import operator
from verl_hpc.step.placement import Placement
from verl_hpc.testing.local_run import engine_of
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes import find_recipe, make_recipe

OWN = '''
"""Scores are a judge's; every token's advantage is its response's, divided by its length."""

import torch

from verl_hpc.step.batch import MASK, Columns, add_column
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.assign import assign
from verl_hpc.generation.generate import generate
from verl_hpc.step.operators.infer import model_scores, old_log_probs
from verl_hpc.step.operators.update import update_actor
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.step.operator import operator

LENGTHS = add_column("own_lengths", torch.int64, per="sample")


@operator("lengths")
def lengths(place, sequences):
    rows = [mask.sum()[None].long() for mask in sequences[MASK]]
    metrics = {"own/longest": float(max(map(int, rows)))}
    return Columns(sequences.positions, {LENGTHS: rows}), metrics


@operator("advantages")
def shortened(place, actor, settings, plain, lengths):
    rows = zip(plain["advantages"], lengths[LENGTHS], strict=True)
    found = [row * settings / length for row, length in rows]
    return Columns(plain.positions, {"advantages": found}), {}


def mine(run):
    settings = run.settings
    recipe = Recipe("mine", run)
    recipe.operator(generate, roles=["rollout"], settings=settings.generate, name="rollout")
    recipe.operator(assign, settings=settings.assign, place="rollout")
    recipe.operator(lengths, place="rollout")
    recipe.operator(model_scores, roles=["judge"])
    recipe.operator(old_log_probs, roles=["actor"], settings=settings.old_log_probs)
    recipe.operator(
        advantages, settings=settings.advantage, place="actor", outputs=["plain"]
    )
    recipe.operator(shortened, roles=["actor"], settings=3.0)
    return recipe.operator(update_actor, roles=["actor"], settings=settings.policy, first_step=2)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The file of a recipe; the column that it makes known is forgotten after the test."""
    monkeypatch.setattr(batch, "COLUMNS", batch.COLUMNS)
    known = dict(batch.COLUMNS)
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    yield tmp_path / "own.py"
    batch.COLUMNS.clear()
    batch.COLUMNS.update(known)


ROLES = {"actor": {}, "judge": {"head": "score", "path": "models/judge"}}


def test_a_recipe_of_the_users_trains(tmp_path, own):
    run = small_run(tmp_path, recipe=f"{own}:mine", roles=ROLES, steps=3)
    assert ([*run.roles], run.trained) == (["actor", "judge"], [run.roles["actor"]])
    judge = {n: w.clone() for n, w in engine_of(run, "judge").weights.items()}
    actor = engine_of(run, "actor").weights["lm_head.weight"].clone()
    result, lines = loop(run)
    assert result.outcome == "finished"
    assert all(1 <= line["own/longest"] <= 5 for line in lines)
    assert ["actor/loss" in line for line in lines] == [False, True, True]
    # The model's, which are no tenths as the function's would be.
    assert lines[0]["critic/score/mean"] * 40 % 1 > 1e-3
    assert not torch.equal(actor, engine_of(run, "actor").weights["lm_head.weight"])
    for name, weight in engine_of(run, "judge").weights.items():
        assert torch.equal(weight, judge[name])
    drawn = (run.config.run_directory / "flow.txt").read_text()
    assert "lengths" in drawn and "plain, lengths => advantages" in drawn


def test_a_file_without_the_recipe_is_refused(tmp_path, own):
    (tmp_path / "broken.py").write_text("raise ValueError(3)", encoding="utf-8")
    for recipe, words in (
        ("own.py:nobody", "nobody"),
        ("gone.py:mine", "gone.py"),
        ("broken.py:mine", "cannot be imported: ValueError: 3"),
    ):
        with pytest.raises(FlowError, match=words):
            find_recipe(f"{tmp_path}/{recipe}", 60.0)


# What is refused


@operator("found")
def good(place, rows):
    return 1, {"own/number": 1.0}


@operator("found")
def without_metrics(place, rows):
    return 1


@operator("one", "two")
def too_few(place, rows):
    return 1, {}


@operator("other")
def same_metric(place, found):
    return 2, {"own/number": 2.0}


@operator()
def of_actor(place, actor):
    return (), {}


def undeclared(place, rows):
    return 1, {}


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path, held_out=None)


def take(recipe):
    return recipe.compile().run(rows=batch.StepRows(1, [0]))


def test_metrics_are_of_all_operators(run):
    recipe = Recipe("mine", run).operator(good, place="actor")
    assert (take(recipe)["found"], recipe.metrics) == (1, {"own/number": 1.0})


UNFIT_OPERATORS = [
    (undeclared, {"place": "actor"}, r"operator 'undeclared': put @operator\(...\) on"),
    (of_actor, {"roles": ["actr"]}, "'mine': operator 'of_actor' needs the role 'actr'.* actor"),
    (good, {"place": "trian"}, "placement 'trian'.*did you mean train"),
    (good, {}, "good"),
    (good, {"place": "actor", "outputs": ["a", "b"]}, "good"),
    (without_metrics, {"place": "actor"}, "'without_metrics' gives int; expected its output and"),
    (too_few, {"place": "actor"}, "'too_few' gives int, expected a tuple of 2: one, two"),
]


@pytest.mark.parametrize(("func", "given", "words"), UNFIT_OPERATORS)
def test_an_operator_that_no_recipe_can_have_or_that_gives_something_else(run, func, given, words):
    with pytest.raises(FlowError, match=words):
        take(Recipe("mine", run).operator(func, **given))


WITHOUT_GENERATION = [
    {"roles": {"policy": {"trainable": True}, "judge": ROLES["judge"]}},
    {"roles": ROLES, "rollout__engine": "none"},
]


@pytest.mark.parametrize("changes", WITHOUT_GENERATION, ids=["no actor", "no engine"])
def test_a_run_in_which_nothing_generates(tmp_path, own, changes):
    """No role can be named rollout, so the error does not ask for one."""
    run = small_run(tmp_path, recipe=f"{own}:mine", held_out=None, **changes)
    told = (
        "operator 'rollout' needs the role 'rollout', and nothing generates in this run; name the "
        "role that generates actor, and choose rollout.engine: vllm or hf"
    )
    with pytest.raises(FlowError, match=told) as caught:
        recipe_of(run)
    assert "give it in roles" not in str(caught.value)


def test_roles_of_other_groups_of_ranks(tmp_path, own):
    run = small_run(tmp_path, recipe=f"{own}:mine", roles=ROLES, held_out=None)
    run.roles["judge"].place = Placement(Pool("apart", ((1,),)), 0, None, torch.device("cpu"))
    told = "operator 'of_actor': it runs at train, and the role 'judge' is at apart in other groups"
    with pytest.raises(FlowError, match=told):
        Recipe("mine", run).operator(of_actor, roles=["judge"], place="actor")
    with pytest.raises(FlowError, match="the role 'judge' is at apart"):
        Recipe("mine", run).operator(of_actor, roles=["actor", "judge"])


def test_nothing_generates_after_a_model_has_taken_the_device(run):
    recipe = Recipe("mine", run)
    recipe.operator(of_actor, roles=["actor"])
    recipe.operator(generate, roles=["rollout"], settings=run.settings.generate, name="rollout")
    with pytest.raises(FlowError, match=r"operator 'rollout' generates after 'of_actor'.*rank 0"):
        recipe.compile()
    recipe.operators.reverse()
    recipe.compile()


UNTRAINED = "roles.actor: an operator trains this role.*roles.actor.trainable: true"
UNFIT_ROLES = [
    ({"actor": {"trainable": False}}, UNTRAINED),
    ({"spare": {}}, "roles.spare: no operator of recipe .*own.py:mine uses"),
]


@pytest.mark.parametrize(("roles", "words"), UNFIT_ROLES)
def test_roles_that_the_operators_do_not_suit(tmp_path, own, roles, words):
    run = small_run(tmp_path, recipe=f"{own}:mine", roles=ROLES | roles, held_out=None)
    with pytest.raises(FlowError, match=words):
        loop(run)


def test_a_shared_reference_cannot_be_updated(tmp_path):
    run = small_run(tmp_path, algorithm__kl={"placement": "reward"}, held_out=None)
    with pytest.raises(FlowError, match="roles.reference: an operator trains this role"):
        _ = run.roles["reference"].trained


def test_a_recipe_is_a_recipe(run):
    with pytest.raises(FlowError, match="recipe = rl: it gives NoneType, expected a Recipe"):
        make_recipe(run, lambda run: None)


def test_an_operator_that_comes_in_later_is_left_out_before(run):
    recipe = Recipe("mine", run).operator(good, place="actor")
    recipe.operator(same_metric, place="actor", first_step=3)
    assert [op.name for op in recipe.of_step(2).operators] == ["good"]
    assert recipe.of_step(3) is recipe


def test_no_metric_is_written_twice(run):
    recipe = Recipe("mine", run).operator(good, place="actor").operator(same_metric, place="actor")
    with pytest.raises(FlowError, match="same_metric.*another operator.*prefix"):
        take(recipe)


def test_what_is_shared_is_an_output():
    with pytest.raises(FlowError, match="fund"):
        operator("found", shared=("fund",))
