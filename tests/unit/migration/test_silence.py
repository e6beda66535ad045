"""No key is silently ignored: a value that is not verl's default is seen, refused or told."""

import itertools

import pytest

from tests.slow import all_slow
from tests.unit.migration.cases import BASE, CASES, forms_of, other
from verl_hpc.errors import ConfigError
from verl_hpc.migration.legacy import modern
from verl_hpc.migration.reference import FORMS, reference
from verl_hpc.migration.row import same
from verl_hpc.migration.table import ROWS
from verl_hpc.migration.translate import translate
from verl_hpc.migration.values import Values
from verl_hpc.migration.words import Spoken

ODD = ("nonsense", *all_slow(True, False, 3))
"""Values that a key is given besides one of its default's own type."""


def run_of(found):
    return found.config(), found.ranks


def is_silent(key, value, form, beside, without):
    """Whether nothing tells that a key is set."""
    found = translate(Spoken(beside | {key: value}, form))
    if found.refused or key in found.notes:
        return False
    try:
        return run_of(found) == without
    except ConfigError:
        return False


def odd_values(values, key, form, given=BASE):
    """The values, and one of the default's type, without verl's default of the key or of its newer
    name."""
    new = next(iter(modern({key: "given"}).found), key)
    default = Values(given, form).default(new)
    return [value for value in (*values, other(default)) if not same(value, default)]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("form", FORMS)
def test_no_key_of_verls_is_silently_ignored(form, odd):
    without = run_of(translate(Spoken(BASE, form)))
    silent = [
        (key, value)
        for key in reference().forms[form]
        if key not in BASE
        for value in odd_values([odd], key, form)
        if is_silent(key, value, form, BASE, without)
    ]
    assert silent == []


@pytest.mark.parametrize("odd", ODD)
def test_no_key_that_verl_does_not_list_is_silently_ignored(odd):
    for row in ROWS:
        if row.key in reference() or row.is_pattern:
            continue
        for form in forms_of(row.key):
            without = run_of(translate(Spoken(BASE, form)))
            for value in odd_values([odd], row.key, form):
                assert not is_silent(row.key, value, form, BASE, without), (row.key, value)


@pytest.mark.parametrize("odd", ODD)
def test_no_value_is_silently_ignored_with_or_without_what_a_key_goes_with(odd):
    silent = []
    for case in CASES:
        besides = [BASE, BASE | case.beside] if case.beside else [BASE]
        for form, beside in itertools.product(case.forms, besides):
            others = {key: value for key, value in beside.items() if key != case.key}
            without = translate(Spoken(others, form))
            run = None if without.refused else run_of(without)
            silent += [
                (case.key, value, form, beside)
                for value in odd_values([case.value, odd], case.key, form, others)
                if is_silent(case.key, value, form, others, run)
            ]
    assert silent == []


@pytest.mark.parametrize(
    ("old", "beside"),
    [
        ("custom_reward_function.name", {}),
        ("reward_model.model.path", {}),
        ("reward_model.overlong_buffer.len", {}),
        (
            "critic_lr",
            {"algorithm": "grpo", "actor_rollout_ref.rollout.n": 2, "data.batch_size": 256},
        ),
    ],
)
def test_an_older_name_is_told_as_its_new_one(old, beside):
    found = translate(Spoken(BASE | beside | {old: 2e-5 if old == "critic_lr" else "x"}))
    assert found.notes[old].startswith("decides nothing")


@pytest.mark.parametrize(
    "key",
    [
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
        "moe_router_load_balancing_type",
    ],
)
def test_a_setting_of_megatron_core_without_its_partner_is_told(key):
    key = f"actor_rollout_ref.actor.megatron.override_transformer_config.{key}"
    found = translate(Spoken(BASE | {key: "nonsense"}, "megatron"))
    assert found.notes[key] == "decides nothing beside the other keys that are given"


def test_keys_that_are_told_to_decide_nothing_can_all_be_left_out():
    """Two that say the same: one of them decides."""
    seeds = ("data.seed", "actor_rollout_ref.rollout.seed", "critic.data_loader_seed")
    given = BASE | dict.fromkeys(seeds, 7)
    found = translate(Spoken(given))
    told = {key: text for key, text in found.notes.items() if key in seeds}
    assert told == dict.fromkeys(seeds[:2], "says what is taken without it, too")
    less = {key: value for key, value in given.items() if key not in seeds[:2]}
    assert translate(Spoken(less)).config() == found.config()
    assert found.config().seed == 7


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "section",
    [
        "actor_rollout_ref.actor.optim.override_optimizer_config",
        "critic.optim.override_optimizer_config",
        "actor_rollout_ref.rollout.engine_kwargs.vllm",
        "reward.custom_reward_function.reward_kwargs",
    ],
)
def test_a_section_that_is_none_is_refused(form, section):
    (refused,) = translate(Spoken(BASE | {section: "x"}, form)).refused
    assert str(refused) == f"{section}: = 'x'; expected a section, such as {{name: value}}"


@pytest.mark.parametrize("model", ["actor_rollout_ref.actor", "critic"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", ["x", 9])
def test_steps_that_verl_itself_writes_over_are_told(model, form, value):
    """Its trainers put the run's steps in their place, whatever they are."""
    key = f"{model}.optim.total_training_steps"
    found = translate(Spoken(BASE | {key: value}, form))
    assert found.notes[key] == "changes no number: verl writes the run's own steps over it"
    assert found.config() == translate(Spoken(BASE, form)).config()


def test_a_share_of_the_steps_over_which_the_learning_rate_decays():
    """As verl's Megatron scheduler has it; steps of 0 are none."""
    optim = "actor_rollout_ref.actor.optim"
    given = BASE | {f"{optim}.lr_warmup_steps_ratio": 0.5, f"{optim}.lr_warmup_steps": 0}
    each = 4  # optimizer steps in one of the trainer's ten
    for form in FORMS:
        assert translate(Spoken(given, form)).config().optimizer.warmup_steps == 5 * each
    given[f"{optim}.lr_decay_steps"] = 8
    assert translate(Spoken(given, "megatron")).config().optimizer.warmup_steps == 4 * each


@pytest.mark.parametrize(
    ("key", "beside"),
    [
        ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size", {}),
        ("critic_model", {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 2}),
    ],
)
def test_a_key_whose_name_alone_decides_is_not_told_to_decide_nothing(key, beside):
    """Which of verl's forms this is, or what is the default of keys that tutorials leave out."""
    given = BASE | beside
    found = translate(Spoken(given | {key: 2}))
    assert found.notes[key].startswith("any value does the same")
    assert found.config() != translate(Spoken(given)).config()


def test_one_of_two_keys_that_say_the_same_is_told_and_the_other_decides():
    keys = [f"actor_rollout_ref.{role}.profiler.enable" for role in ("actor", "ref")]
    steps = {"global_profiler.tool": "torch", "global_profiler.steps": [2]}
    notes = translate(Spoken(BASE | steps | dict.fromkeys(keys, True))).notes
    assert notes[keys[0]] == "decides nothing beside the other keys that are given"
    assert keys[1] not in notes


def test_the_second_of_a_tutorials_names_for_a_key_is_told():
    notes = translate(Spoken(BASE | {"lr": 1e-5, "learning_rate": 1e-5})).notes
    assert notes["lr"] == "says what is taken without it, too"


@pytest.mark.parametrize(
    ("name", "value"), [("gpu_memory_utilization", 0.9), ("enforce_eager", True)]
)
def test_settings_of_vllm_are_told_where_another_engine_generates(name, value):
    """Our settings have them, and nothing there reads them."""
    rollout = "actor_rollout_ref.rollout"
    given = BASE | {f"{rollout}.name": "hf", f"{rollout}.{name}": value}
    assert "vLLM" in translate(Spoken(given)).notes[f"{rollout}.{name}"]
    assert f"{rollout}.{name}" not in translate(Spoken(given | {f"{rollout}.name": "vllm"})).notes
