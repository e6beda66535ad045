"""Every key of verl's reference configurations: honoured, taken at its default, or refused."""

import json

import pytest

from tests.unit.migration.cases import AGREEMENTS, BASE, CASES, CORRECTION, forms_of, other
from verl_hpc.config.model import CriticConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import settings_of
from verl_hpc.errors import ConfigError
from verl_hpc.migration.reference import FORMS, reference
from verl_hpc.migration.row import RANKS
from verl_hpc.migration.table import find, rows
from verl_hpc.migration.translate import translate
from verl_hpc.migration.words import Overrides

KEYS = reference().keys
DEFAULTS = {k: v for keys in reference().forms.values() for k, v in keys.items()}
LEGACY = ("reward_model.", "custom_reward_function.", "sandbox_fusion.")


def at(tree, name):
    for part in name.split("."):
        tree = tree[part]
    return tree


def seen(found, name):
    """A setting of the resolved configuration; None if there is no such run, or section."""
    try:
        return at(found.config().model_dump(mode="json"), name)
    except (ConfigError, KeyError, TypeError):
        return None


def is_number(value):
    return type(value) in (int, float)


def test_verls_keys_are_those_of_its_files():
    assert len(KEYS) == 1011
    assert reference().commit == "1dda039b9c6311889a9c9a26040677e1254814f9"
    fsdp, megatron = reference().forms["fsdp"], reference().forms["megatron"]
    assert (len(fsdp), len(megatron)) == (826, 873)
    assert fsdp["actor_rollout_ref.actor.clip_ratio_c"] == 3.0
    assert megatron["actor_rollout_ref.actor.strategy"] == "megatron"


def test_every_key_has_a_row():
    assert [key for key in KEYS if find(key) is None] == []


def test_keys_of_the_release_and_a_default_that_a_run_without_a_critic_need_not_say():
    assert CriticConfig().value_clip == DEFAULTS["critic.cliprange_value"]
    for name in ("enable", "model_family"):
        assert find(f"data.continuous_token.{name}").fate == "fixed"


def test_every_row_says_why_and_what_is_nearest():
    for row in rows():
        assert row.ours if row.fate in ("honoured", "agrees") else row.says, row.key
        assert row.near or row.fate not in ("fixed", "refused"), row.key
        assert (row.by in ("agree", "chosen")) == bool(row.other), row.key
        assert (row.by == "chosen") == bool(row.choices), row.key
        assert row.otherwise or not row.other, row.key


def test_every_setting_of_ours_that_a_row_names_is_there():
    known = {s.name for s in settings_of(RunConfig)} | {RANKS}
    known |= {name.replace("NAME", role) for name in known for role in ("critic", "reference")}
    known |= {n.replace(".NAME.", ".validation.") for n in known} | {
        "roles.reward.path",
        "roles.teacher.path",
    }
    sections = ("rollout.engine_options", "reward.options")
    for row in rows():
        for name in row.ours:
            assert name in known or name.startswith(sections), (row.key, name)


@pytest.mark.parametrize("form", FORMS)
def test_every_key_is_taken_at_verls_default(form):
    fsdp, keys = (reference().forms[name] for name in ("fsdp", form))
    for key, value in keys.items():
        if "${" in json.dumps(value) or key in BASE:
            continue
        if form != "fsdp" and key in fsdp and fsdp[key] == value:
            continue
        found = translate(Overrides(BASE | {key: value}, form))
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
        refused = translate(Overrides(BASE | {key: value}, form)).refused
        assert refused and refused[0].key == key, (key, value)
        assert refused[0].why.startswith(row.says)


def test_a_key_that_changes_no_number_is_taken_at_any_value_and_told():
    keys = [key for key in KEYS if find(key).fate == "any"]
    assert "actor_rollout_ref.model.use_fused_kernels" in keys
    for key in keys:
        form = forms_of(key)[0]
        found = translate(Overrides(BASE | {key: other(reference().forms[form][key])}, form))
        assert not found.refused, (key, found.refused)
        assert found.notes[key] == f"changes no number: {find(key).says}"
        assert found.settings == translate(Overrides(BASE, form)).settings


def test_every_honoured_key_and_every_setting_that_its_row_names_has_a_case():
    tried = {(find(case.key).key, case.ours) for case in CASES}
    honoured = [row for row in rows() if row.fate == "honoured"]
    assert {row.key for row in honoured} <= {key for key, _ in tried}
    named = [(row.key, name) for row in honoured for name in row.ours if name != RANKS]
    missing = [
        (key, name)
        for key, name in named
        if not any(key == other and ours.startswith(name) for other, ours in tried)
    ]
    assert missing == []


def test_an_honoured_key_is_seen_in_the_resolved_configuration():
    for case in CASES:
        given = BASE | case.beside | {case.key: case.value}
        run = translate(Overrides(given, case.forms[0]))
        resolved = run.config().model_dump(mode="json")
        assert at(resolved, case.ours) == case.expected, case
        if case.key.startswith("trainer.n") and case.ours == "parallel.data_parallel":
            assert run.ranks == case.expected, case
        assert any(case.ours.startswith(name) for name in find(case.key).ours), case
        without = translate(
            Overrides(BASE | {k: v for k, v in given.items() if k != case.key}, case.forms[0])
        )
        if not without.refused:  # else what is beside the key needs it
            assert seen(without, case.ours) != case.expected, case


def test_a_key_that_must_agree_is_refused_where_it_does_not():
    for agreement in AGREEMENTS:
        given, key = BASE | agreement.beside, agreement.key
        assert find(key).fate == "agrees", key
        without = translate(Overrides(given)).config()
        assert translate(Overrides(given | {key: agreement.value})).config() == without, key
        refused = translate(Overrides(given | {key: agreement.wrong})).refused
        assert [one.key for one in refused] == [key], agreement


def test_every_key_that_must_agree_has_a_case():
    keys = {row.key for row in rows() if row.fate == "agrees"}
    assert keys == {agreement.key for agreement in AGREEMENTS}


def test_true_is_no_number():
    numbers = [key for key, value in DEFAULTS.items() if is_number(value)]
    assert len(numbers) > 200
    taken = [
        (key, value)
        for key in numbers
        for value in (True, False)
        if not (refused := translate(Overrides(BASE | {key: value}, forms_of(key)[0])).refused)
        or refused[0].key != key
    ]
    assert taken == []


@pytest.mark.parametrize("value", [[1], {"a": 1}, "text", -3])
def test_no_value_of_an_honoured_key_is_more_than_an_error(value):
    for row in rows():
        if row.fate == "honoured" and not row.is_pattern:
            beside = {"algorithm.use_kl_in_reward": True, f"{CORRECTION}.rollout_is": "token"}
            spoken = Overrides({**BASE, **beside, row.key: value}, forms_of(row.key)[0])
            assert translate(spoken).settings["recipe"] == "rl"
