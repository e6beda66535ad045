"""Every key of verl's reference configurations: honoured, taken at its default, or refused."""

import json

import pytest

from tests.unit.migration.cases import CASES, CORRECTION, MODEL
from verl_hpc.config.load import dump_config
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import settings_of
from verl_hpc.migration.reference import FORMS, reference
from verl_hpc.migration.row import RANKS
from verl_hpc.migration.table import ROWS, find
from verl_hpc.migration.translate import translate
from verl_hpc.migration.words import Spoken

BASE = {
    f"{MODEL}.path": "model",
    "data.train_files": "train.parquet",
    "data.val_files": "test.parquet",
    "trainer.total_training_steps": 10,
}
KEYS = reference().keys
LEGACY = ("reward_model.", "custom_reward_function.", "sandbox_fusion.")


def forms_of(key):
    forms = [form for form in FORMS if key in reference().forms[form]]
    return forms or [next(f for f in FORMS if f == ("megatron" if "megatron" in key else "fsdp"))]


def at(tree, name):
    for part in name.split("."):
        tree = tree[part]
    return tree


def other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    return {list: ["other"], dict: {"other": 1}}.get(type(value), "other")


def test_verls_keys_are_those_of_its_files():
    assert len(KEYS) == 1011
    assert reference().commit == "1dda039b9c6311889a9c9a26040677e1254814f9"
    fsdp, megatron = reference().forms["fsdp"], reference().forms["megatron"]
    assert (len(fsdp), len(megatron)) == (826, 873)
    assert fsdp["actor_rollout_ref.actor.clip_ratio_c"] == 3.0
    assert megatron["actor_rollout_ref.actor.strategy"] == "megatron"


def test_every_key_has_a_row():
    assert [key for key in KEYS if find(key) is None] == []


def test_keys_that_the_release_has_and_the_main_branch_has_not():
    assert find("data.continuous_token.enable").fate == "fixed"
    assert find("data.continuous_token.model_family").fate == "fixed"


def test_every_row_says_why():
    for row in ROWS:
        assert row.ours if row.fate == "honoured" else row.says, row.key


def test_every_setting_of_ours_that_a_row_names_is_there():
    known = {s.name for s in settings_of(RunConfig)} | {RANKS}
    known |= {name.replace("NAME", role) for name in known for role in ("critic", "reference")}
    known |= {n.replace(".NAME.", ".validation.") for n in known} | {"roles.reward.path"}
    sections = ("rollout.engine_options", "reward.options")
    for row in ROWS:
        for name in row.ours:
            assert name in known or name.startswith(sections), (row.key, name)


@pytest.mark.parametrize("form", FORMS)
def test_every_key_is_taken_at_verls_default(form):
    for key, value in reference().forms[form].items():
        if "${" in json.dumps(value) or key in BASE:
            continue
        found = translate(Spoken(BASE | {key: value}, form))
        assert not found.refused, (key, value, found.refused[0])


def test_a_fixed_key_is_refused_at_another_value_with_the_reason():
    for key in KEYS:
        row = find(key)
        if row.fate != "fixed" or key.startswith(LEGACY):
            continue
        form = forms_of(key)[0]
        value = other(reference().forms[form][key])
        if any(value is taken for taken in row.also):
            continue
        refused = translate(Spoken(BASE | {key: value}, form)).refused
        assert refused and refused[0].key == key, (key, value)
        assert refused[0].why.startswith(row.says)


@pytest.mark.parametrize(
    "section", ["actor_rollout_ref.actor.fsdp_config", "critic.fsdp", "actor_rollout_ref.rollout"]
)
def test_kernels_that_are_reproducible_bit_for_bit_are_not_promised(section):
    key = f"{section}.full_determinism"
    (refused,) = translate(Spoken(BASE | {key: True}, "fsdp")).refused
    assert refused.key == key and "on GPUs" in str(refused)


def test_a_key_that_changes_no_number_is_taken_at_any_value_and_told():
    keys = [key for key in KEYS if find(key).fate == "any"]
    assert "actor_rollout_ref.model.use_fused_kernels" in keys
    for key in keys:
        form = forms_of(key)[0]
        found = translate(Spoken(BASE | {key: other(reference().forms[form][key])}, form))
        assert not found.refused, (key, found.refused)
        assert found.notes[key] == f"changes no number: {find(key).says}"
        assert found.settings == translate(Spoken(BASE, form)).settings


def test_every_honoured_key_has_a_case():
    tried = {find(case.key).key for case in CASES}
    assert sorted({row.key for row in ROWS if row.fate == "honoured"} - tried) == []


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_honoured_key_is_seen_in_the_resolved_configuration(case):
    form = case.form or forms_of(case.key)[0]
    if form == "fsdp" and any("megatron" in key for key in case.beside):
        form = "megatron"
    found = translate(Spoken(BASE | case.beside | {case.key: case.value}, form))
    resolved = read_yaml(dump_config(found.config()))
    assert at(resolved, case.ours) == case.expected
    if case.key.startswith("trainer.n") and case.ours == "parallel.data_parallel":
        assert found.ranks == case.expected
    ours = find(case.key).ours
    assert any(case.ours.startswith(name) for name in ours)


@pytest.mark.parametrize("value", [[1], {"a": 1}, "text", -3])
def test_no_value_of_an_honoured_key_is_more_than_an_error(value):
    for row in ROWS:
        if row.fate == "honoured" and not row.is_pattern:
            beside = {"algorithm.use_kl_in_reward": True, f"{CORRECTION}.rollout_is": "token"}
            spoken = Spoken({**BASE, **beside, row.key: value}, forms_of(row.key)[0])
            assert translate(spoken).settings["recipe"] == "rl"
