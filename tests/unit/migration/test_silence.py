"""No key is silently ignored: a value that is not verl's default is seen, refused or told."""

import pytest

from tests.slow import all_slow
from tests.unit.migration.cases import AGREEMENTS, BASE, CASES, forms_of, other
from verl_hpc.errors import ConfigError
from verl_hpc.migration.legacy import modern
from verl_hpc.migration.reference import FORMS, MISSING, reference
from verl_hpc.migration.row import same
from verl_hpc.migration.table import rows
from verl_hpc.migration.translate import translate
from verl_hpc.migration.values import Values
from verl_hpc.migration.words import Overrides

ODD = ("nonsense", *all_slow(True, False, 3))
"""Values that a key is given besides one of its default's own type."""

ALIKE = {
    "actor_rollout_ref.actor.checkpoint.async_save": True,
    "actor_rollout_ref.model.use_liger": True,
    "critic.model.use_liger": True,
    "actor_rollout_ref.actor.profiler.tool": False,
    "actor_rollout_ref.ref.megatron.expert_tensor_parallel_size": True,
    "critic.megatron.expert_tensor_parallel_size": True,
}
"""Values that are not verl's default, and do what is done without them."""


def run_of(found):
    return found.config(), found.ranks


def is_silent(key, value, form, beside, without):
    """Translate the run again with a key, and say whether nothing shows that it is set."""
    found = translate(Overrides(beside | {key: value}, form))
    if found.refused or key in found.notes:
        return False
    try:
        return run_of(found) == without
    except ConfigError:
        return False


def newest(key):
    return next(iter(modern({key: "given"}).found), key)


def odd_values(values, key, form, given=BASE):
    """The values, and one of the default's type, without verl's default of the key or of its newer
    name, those that do the same, and false in the place of what is null, empty or 0."""
    default = Values(given, form).default(newest(key))
    return [
        value
        for value in (*values, other(default))
        if not same(value, default)
        and not (key in ALIKE and same(value, ALIKE[key]))
        and not (value is False and (not default or default == MISSING))
    ]


def goes_with_others():
    """Return the keys and forms that decide the run with other keys or in the other form, as a
    case shows."""
    decide = {(case.key, form) for case in CASES if case.beside for form in FORMS}
    decide |= {(case.key, form) for case in CASES for form in FORMS if form not in case.forms}
    return decide | {(agreement.key, form) for agreement in AGREEMENTS for form in FORMS}


@pytest.mark.parametrize("odd", ODD)
def test_no_key_is_silently_ignored_but_where_others_decide_whether_it_counts(odd):
    explained = goes_with_others()
    unlisted = [row.key for row in rows() if row.key not in reference() and not row.is_pattern]
    silent = []
    for form in FORMS:
        without = run_of(translate(Overrides(BASE, form)))
        more = [key for key in unlisted if form in forms_of(key)]
        silent += [
            (key, value, form)
            for key in [*reference().forms[form], *more]
            if key not in BASE
            for value in odd_values([odd], key, form)
            if is_silent(key, value, form, BASE, without) and (newest(key), form) not in explained
        ]
    assert silent == []


@pytest.mark.parametrize("odd", ODD)
def test_no_value_is_silently_ignored_with_what_a_key_goes_with(odd):
    silent = []
    for case in CASES:
        if not case.beside:
            continue
        for form in case.forms:
            others = {key: value for key, value in (BASE | case.beside).items() if key != case.key}
            without = translate(Overrides(others, form))
            run = None if without.refused else run_of(without)
            silent += [
                (case.key, value, form)
                for value in odd_values([case.value, odd], case.key, form, others)
                if is_silent(case.key, value, form, others, run)
            ]
    assert silent == []


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
    (refused,) = translate(Overrides(BASE | {section: "x"}, form)).refused
    assert str(refused) == f"{section}: = 'x'; expected a section, such as {{name: value}}"


@pytest.mark.parametrize("model", ["actor_rollout_ref.actor", "critic"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", ["x", 9])
def test_steps_that_verl_itself_writes_over_are_told(model, form, value):
    """Its trainers put the run's steps in their place, whatever they are."""
    key = f"{model}.optim.total_training_steps"
    found = translate(Overrides(BASE | {key: value}, form))
    assert found.notes[key] == "changes no number: verl writes the run's own steps over it"
    assert found.config() == translate(Overrides(BASE, form)).config()
