"""Rules between the sections of a run."""

import pytest
import yaml
from pydantic import ValidationError

from tests.unit.config.trees import parse
from verl_hpc.config.load import dump_config, load_config, parse_config
from verl_hpc.errors import ConfigError

EVALUATION = {"kind": "files", "paths": ["test.jsonl"]}


def refused(words, **changes):
    with pytest.raises(ConfigError) as caught:
        parse(**changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "name, advantage", [("grpo", "grpo"), ("ppo", "gae"), ("remax", "remax"), ("opo", "opo")]
)
def test_an_estimator_is_no_recipe(name, advantage):
    words = [f"recipe = '{name}'", "names an estimator", "recipe: rl", f"name: {advantage}"]
    refused(words, recipe=name)


def test_a_chosen_algorithm_keeps_its_settings():
    algorithm = parse().algorithm
    assert (algorithm.advantage.name, algorithm.loss.name) == ("grpo", "ppo_clip"), "unless chosen"
    advantage = parse(algorithm__advantage={"name": "gae", "lam": 0.9}).algorithm.advantage
    assert (advantage.name, advantage.lam) == ("gae", 0.9)
    assert parse(algorithm__advantage={"std": "none"}).algorithm.advantage.std == "none"
    assert parse(algorithm__loss={"clip_high": 0.28}).algorithm.loss.clip_high == 0.28


OWN = "mine/own.py:Own"


@pytest.mark.parametrize("section", ["advantage", "loss"])
def test_an_algorithm_of_the_users_keeps_whatever_settings_it_has(section):
    config = parse(**{f"algorithm__{section}": {"name": OWN, "a": [1, {"b": None}]}})
    own = getattr(config.algorithm, section)
    assert (own.name, own.model_extra) == (OWN, {"a": [1, {"b": None}]})
    assert parse_config(yaml.safe_load(dump_config(config))) == config


ADVANTAGE = "algorithm__advantage"
MEANINGLESS = [
    ("advantage.name = 'own.py': must be one of gae, ", {ADVANTAGE: {"name": "own.py"}}),
    ("path/file.py:name", {ADVANTAGE: {"name": "own.py"}}),
    ("a = nan: must be finite", {ADVANTAGE: {"name": OWN, "a": float("nan")}}),
    ("algorithm.advantage.api_key looks like a secret", {ADVANTAGE: {"name": OWN, "api_key": "x"}}),
    ("advantage = 'grpo': expected a section, such as {name: grpo}", {ADVANTAGE: "grpo"}),
    ("steps: is needed and not given; or give epochs", {"steps": None}),
    ("steps = 3 and epochs = 2 are both given; leave one out", {"epochs": 2}),
    ("epochs = 0: Input should be greater than or equal to 1", {"steps": None, "epochs": 0}),
    ("epochs = 1.5: Input should be a valid integer", {"steps": None, "epochs": 1.5}),
]


@pytest.mark.parametrize("words, changes", MEANINGLESS)
def test_an_algorithm_or_a_length_that_cannot_be_meant(words, changes):
    refused([words], **changes)


def test_evaluation_needs_problems():
    refused(["evaluation.every > 0 needs data.evaluation"], evaluation__every=5)
    refused(["evaluation.at_start needs data.evaluation"], evaluation__at_start=True)
    assert parse(evaluation__every=5, data__evaluation=EVALUATION).evaluation.every == 5
    assert parse(evaluation__at_start=True, data__evaluation=EVALUATION).evaluation.wanted
    assert not parse(data__evaluation=EVALUATION).evaluation.wanted


def test_stopping_at_a_score_needs_evaluation():
    refused(["evaluation.stop_at needs evaluation.every > 0"], evaluation__stop_at=0.9)
    parse(evaluation__stop_at=0.9, evaluation__every=1, data__evaluation=EVALUATION)


@pytest.mark.parametrize(
    "name, value", [("top_p", 0.9), ("top_k", 20), ("min_p", 0.1), ("repetition_penalty", 1.2)]
)
def test_a_filter_leaves_no_log_probs_of_the_policy(name, value):
    filtered = {f"rollout__{name}": value}
    assert parse(**filtered).rollout.filters == {name: value}
    words = ["algorithm.old_log_probs = rollout", f"rollout.{name} = {value}", "choose auto"]
    refused(words, algorithm__old_log_probs="rollout", **filtered)
    assert parse(algorithm__old_log_probs="rollout").rollout.filters == {}
    words = ["algorithm.correction with", f"rollout.{name} = {value}", "leave the filters out"]
    refused(words, algorithm__correction={}, **filtered)


def test_a_correction_corrects_from_the_rollout_to_the_trainer():
    assert parse(algorithm__correction={}).algorithm.correction.upper == 2.0
    words = ["algorithm.correction with algorithm.old_log_probs = rollout", "choose auto"]
    refused(words, algorithm__correction={}, algorithm__old_log_probs="rollout")
    refused(["correction.upper"], algorithm__correction={"upper": 0})


@pytest.mark.parametrize("recipe", ["sft", "reward_model"])
def test_what_corrects_responses_needs_some(recipe):
    words = [f"with recipe: {recipe}", "leave it out"]
    refused(["algorithm.correction has no effect", *words], recipe=recipe, algorithm__correction={})
    words.append("trains on no responses")
    refused(["rollout.staleness = 1", *words], recipe=recipe, rollout__staleness=1)


@pytest.mark.parametrize("recipe", ["sft", "reward_model", "dpo"])
def test_engines_share_prompts_to_train_on_alone(recipe):
    words = ["rollout.balance = stealing", f"recipe: {recipe}", "trains on no responses"]
    refused(words, recipe=recipe, rollout__balance="stealing")
    refused(words, recipe=recipe, rollout__balance="stealing", **EVALUATED)
    own = parse(recipe="mine/own.py:mine", rollout__balance="stealing")
    assert own.rollout.balance == "stealing"


EVALUATED = {"evaluation__every": 1, "data__evaluation": EVALUATION}
TEACHER = {"recipe": "distillation", "roles": {"teacher": {"path": "models/teacher"}}}
JUDGED = {"roles": {"reward": {"path": "models/judge"}}}
CODE = {"reward__function": "code"}


WITHOUT_CALLS = [
    ({"recipe": "sft"}, "no reward function is called with recipe: sft"),
    ({"recipe": "dpo"}, "no reward function is called with recipe: dpo"),
    (TEACHER, "no reward function is called with recipe: distillation"),
    (JUDGED, "no reward function is called with roles.reward, a model"),
    (CODE, "reward.function = code is called by the rank"),
    ({"reward__terms": {"a": {"function": "code"}}}, "reward.terms.a.function = code is"),
]


@pytest.mark.parametrize(("changes", "words"), WITHOUT_CALLS)
def test_processes_that_score_need_a_function_to_call(changes, words):
    refused(["runtime.reward_processes = 2", words], **changes, runtime__reward_processes=2)
    for number in (None, 0):
        parse(**changes, runtime__reward_processes=number)


WITH_CALLS = [
    {},
    {"recipe": "mine/own.py:mine"},
    {"recipe": "sft", **EVALUATED},
    TEACHER | EVALUATED,
    JUDGED | EVALUATED,
    {"reward__terms": {"a": {"function": "code"}, "b": {"function": "math"}}},
    CODE
    | {"evaluation__sets": {"a": {"source": EVALUATION, "reward": {"function": "math"}}}}
    | {"evaluation__every": 1},
]


@pytest.mark.parametrize("changes", WITH_CALLS)
def test_processes_that_score_where_a_function_is_called(changes):
    assert parse(**changes, runtime__reward_processes=2).runtime.reward_processes == 2


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "grpo_passk"])
def test_a_group_of_one_cannot_be_compared(name):
    words = ["rollout.num_samples = 1", f"name = {name}", "at least 2"]
    refused(words, rollout__num_samples=1, algorithm__advantage={"name": name})


@pytest.mark.parametrize("name", ["gae", "remax", "reinforce_plus_plus"])
def test_a_response_can_be_the_only_one_to_its_prompt(name):
    parse(rollout__num_samples=1, algorithm__advantage={"name": name})
    parse(recipe="sft", rollout__num_samples=1)


def test_training_by_greedy_samples_is_refused():
    refused(["rollout.temperature = 0", "above 0"], rollout__temperature=0)
    parse(recipe="sft", rollout__temperature=0)


@pytest.mark.parametrize(
    "recipe, size, samples, cuts, sequences",
    [("rl", 5, 2, 4, 10), ("mine.py:own", 6, 1, 4, 6), ("sft", 6, 2, 4, 6)],
)
def test_mini_batches_divide_the_sequences_of_a_step(recipe, size, samples, cuts, sequences):
    sizes = dict(recipe=recipe, batch__size=size, rollout__num_samples=samples)
    words = [f"batch.mini_batches = {cuts}", f"{sequences} sequences"]
    refused(words, **sizes, batch__mini_batches=cuts)
    parse(**sizes, batch__mini_batches=sequences)


@pytest.mark.parametrize("name", ["a", "7b", "Qwen3-8B_run.2"])
def test_names_that_can_be_directories(name):
    assert parse(name=name, directory="out").run_directory.parts == ("out", name)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "-x", "..", "a\n"])
def test_names_that_cannot_be_directories(name):
    refused(["name = "], name=name)


def test_a_run_cannot_be_changed():
    config = parse()
    with pytest.raises(ValidationError, match="frozen"):
        config.steps = 4
    with pytest.raises(ValidationError, match="frozen"):
        config.rollout.verify.probe = False


def test_whole_groups_need_mini_batches_that_divide_the_prompts():
    sizes = {"batch__size": 6, "rollout__num_samples": 4, "batch__mini_batches": 4}
    parse(**sizes, batch__shuffle_mini_batches="samples")
    words = ["batch.mini_batches = 4", "6 groups", "shuffle_mini_batches: samples"]
    refused(words, **sizes, batch__shuffle_mini_batches="groups")
    refused(["batch.shuffle_mini_batches = 'rows'"], batch__shuffle_mini_batches="rows")


# How long it lasts


def test_a_run_lasts_steps_or_epochs():
    assert parse(steps=7).num_steps(100) == 7
    sizes = {"steps": None, "epochs": 3, "batch__size": 8}
    found = [parse(**sizes).num_steps(num_rows) for num_rows in (1, 8, 9, 800)]
    assert found == [1, 3, 4, 300], "3 x 9 rows are 3 batches and 3 rows more"


def test_an_override_may_say_the_other(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(parse(steps=None, epochs=2)))
    assert load_config(path).epochs == 2
    again = load_config(path, ["epochs=null", "steps=5"])
    assert (again.steps, again.epochs) == (5, None)


WITHOUT_EFFECT = [
    (
        {"recipe": "sft", "algorithm__loss": {"name": "gspo"}},
        "algorithm.loss has no effect with recipe: sft; it reads algorithm.aggregation and",
    ),
    (
        {"recipe": "sft", "algorithm__advantage": {"name": "rloo"}},
        "algorithm.advantage has no effect with recipe: sft",
    ),
    (
        {"algorithm__drop_equal_groups": True, "algorithm__advantage": {"name": "gae"}}
        | {"rollout__num_samples": 1},
        "a single response has the same score as itself",
    ),
    (
        {"algorithm__loss_scale": 100.0},
        "has no effect with aggregation = token-mean; leave it out, or choose seq-mean-token",
    ),
    ({"critic__warmup_steps": 5}, "critic.warmup_steps = 5: nothing here trains a critic"),
    (
        {"recipe": "sft", "critic__value_clip": None},
        "critic.value_clip = None: nothing here trains a critic; leave it out",
    ),
    (
        {"algorithm__kl": {"coefficient": 0.1}},
        "coefficient = 0.1 has no effect with placement: none",
    ),
    (
        {"algorithm__overlong": {"buffer": 600}, "rollout__max_response_tokens": 512},
        "overlong.buffer = 600 is more than rollout.max_response_tokens = 512",
    ),
    ({"algorithm__overlong": {"leave_out": True, "factor": 2.0}}, "factor = 2 has no effect"),
    ({"algorithm__overlong": {"buffer": 4, "factor": 0.0}}, "overlong.factor = 0"),
    (
        {"critic__warmup_steps": 5, "algorithm__advantage": {"name": "own.py:Mine"}},
        "critic.warmup_steps = 5: .* give `roles: {critic: {}}`, or leave it out",
    ),
    (
        {"algorithm__advantage": {"name": "grpo", "std": "none", "epsilon": 1e-4}},
        "epsilon = 0.0001 has no effect with std: none",
    ),
    (
        {"algorithm__advantage": {"name": "grpo_passk", "std": "none", "epsilon": 1e-4}},
        "epsilon = 0.0001 has no effect with std: none",
    ),
    (
        {"recipe": "dpo", "reward__function": "math"},
        "section reward has no effect with recipe: dpo, which compares answers",
    ),
    ({"rollout__environment": {"name": "calculator", "max_turns": 1}}, "max_turns = 1"),
    ({"algorithm__kl": {"estimator": "k2"}}, "estimator = k2 has no effect with placement"),
    (
        {"algorithm__kl": {"placement": "reward", "target": 0.2}},
        "target = 0.2 has no effect with controller: fixed",
    ),
]


@pytest.mark.parametrize(("changes", "words"), WITHOUT_EFFECT)
def test_settings_of_an_algorithm_that_would_do_nothing(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(**changes)


def test_a_preference_of_the_users_has_time_to_be_imported():
    own = {"recipe": "dpo", "algorithm": {"preference": {"name": "own.py:Mine"}}}
    assert parse(**own, reward={"import_timeout_s": 600}).reward.import_timeout_s == 600
    with pytest.raises(ConfigError, match="section reward has no effect with recipe: dpo"):
        parse(recipe="dpo", reward={"import_timeout_s": 600})


GDPO = {"name": "gdpo", "rewards": ["form", "right"]}


def test_an_advantage_of_parts_of_a_score_reads_nothing_that_changes_the_whole():
    assert parse(algorithm__advantage=GDPO).algorithm.advantage.rewards == ["form", "right"]
    for name, changes in (
        ("algorithm.overlong.buffer", {"algorithm__overlong": {"buffer": 1}}),
        ("reward.smoothing", {"reward__smoothing": {}}),
        (
            "algorithm.kl.placement = reward",
            {"algorithm__kl": {"placement": "reward"}, "roles": {"reference": {}}},
        ),
    ):
        refused([name, "name = gdpo, which reads"], algorithm__advantage=GDPO, **changes)
