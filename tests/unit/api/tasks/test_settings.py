"""tasks.yaml: what it says, and what is wrong with it."""

import pytest

from verl_hpc.api.tasks.settings import ConditionedTask, ConstrainedTask, PPOTask, load_tasks
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.errors import ConfigError

WHOLE = """
steps: 7
tasks:
  solve: {type: ppo, reward_function: exact_match, lr: 1e-4}
  polite: {type: reward_conditioned, condition: {levels: null, target: 1.5}}
  digit: {type: constrained_decoding, constraint: {regex: "[0-9]"}}
"""


def load(tmp_path, text):
    path = tmp_path / "tasks.yaml"
    path.write_text(text)
    return load_tasks(path)


def test_every_type_has_its_settings(tmp_path):
    found = load(tmp_path, WHOLE)
    assert found.steps == 7 and found.seed == 0
    assert list(map(type, found.tasks.values())) == [PPOTask, ConditionedTask, ConstrainedTask]
    assert found.tasks["solve"].lr == 1e-4
    assert found.tasks["solve"].of_trainer(3).seed == 3
    assert found.tasks["digit"].constraint.regex == "[0-9]"


def test_what_was_understood_reads_back_as_the_same(tmp_path):
    found = load(tmp_path, WHOLE)
    assert load(tmp_path, write_yaml(found.model_dump(mode="json"))) == found


def test_tasks_may_be_a_list(tmp_path):
    text = "tasks:\n- {name: a, type: ppo}\n- {name: b, type: ppo, lr: 0.5}\n"
    assert {n: t.lr for n, t in load(tmp_path, text).tasks.items()} == {"a": 1e-6, "b": 0.5}


def test_another_function_than_an_included_files_takes_none_of_its_options(tmp_path):
    task = "tasks: {a: {type: ppo, lr: 2e-4, reward: {function: 'x.py:f', options: {x: 1}}}}"
    (tmp_path / "base.yaml").write_text(task)
    found = load(tmp_path, "include: [base.yaml]\ntasks: {a: {reward: {function: 'y.py:g'}}}")
    assert found.tasks["a"].reward.options == {} and found.tasks["a"].lr == 2e-4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: {}", "task: no such setting; did you mean tasks"),
        ("steps: 0\ntasks: {a: {type: ppo}}", "steps = 0"),
        ("steps: 1", "tasks: is needed and not given"),
        ("tasks: [{type: ppo}]", "every entry of the list needs a name"),
        ("tasks: [{name: a, type: ppo}, {name: a, type: ppo}]", "two of them have the same name"),
        ("tasks: {A: {type: ppo}}", "tasks.A: as a name, "),
        ("tasks: {a: ppo}", "tasks.a = 'ppo': expected its settings"),
        ("tasks: {a: {}}", "tasks.a.type = None: no such type; types: ppo, reward_cond"),
        (
            "tasks: {a: {type: constraint_decoding}}",
            "tasks.a.type = constraint_decoding: .* did you mean constrained_decoding",
        ),
        (
            "tasks: {a: {type: ppo, reward_fn: x}}",
            "tasks.a.reward_fn: no such setting; did you mean reward",
        ),
        ("tasks: {a: {type: ppo, condition: {}}}", "tasks.a.condition: no such setting"),
        ("tasks: {a: {type: ppo, lr: -1.0}}", "tasks.a.lr = -1.0"),
        (
            "tasks: {a: {type: ppo, reward_model: m, reward_function: f}}",
            "reward_function and reward_model exclude each other",
        ),
        (
            "tasks: {a: {type: ppo, reward: {function: math, smoothing: {}}}}",
            "rewards of several tasks are not averaged over steps",
        ),
        (
            "tasks: {a: {type: constrained_decoding, constraint: {regexp: x}}}",
            "tasks.a.constraint.regexp: no such setting; did you mean regex",
        ),
        (
            "tasks: {a: {type: constrained_decoding, constraint: {regex: x, choices: [y]}}}",
            "tasks.a.constraint: give one of choices, regex, function, model",
        ),
        (
            "tasks: {a: {type: constrained_decoding, constraint: {regex: x, min_probability: .1}}}",
            "min_probability = 0.1 has no effect",
        ),
        (
            "tasks: {a: {type: reward_conditioned, condition: {text: 'good: '}}}",
            "write {reward} in it once",
        ),
        (
            "tasks: {a: {type: reward_conditioned, condition: {target: 1.0}}}",
            "give levels, or levels: null and a target",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)
