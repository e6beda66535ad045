"""Tasks, their mix and guards in a configuration: what tasks take from the run, what is refused."""

import re
from pathlib import Path

import pytest

from tests.unit.config.trees import parse, tree
from verl_hpc.config.load import dump_config, load_config, parse_config
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError

SUMS = {"kind": "reasoning_gym", "task": "chain_sum", "size": 20}
WORDS = {"kind": "files", "paths": ["words.jsonl"]}
TASKS = {
    "sums": {"weight": 0.5, "reward": {"function": "exact_match"}},
    "words": {"weight": 0.3, "recipe": "sft", "train": WORDS, "batch_size": 4},
    "pairs": {"weight": 0.2, "recipe": "dpo", "train": {"kind": "files", "paths": ["p.jsonl"]}},
}
SAVES = {"every": 2, "keep": 3}
BACK = {"metric": "actor/grad_norm", "action": "rollback"}


def mixed(**changes):
    return parse(**{"tasks": TASKS} | changes)


def test_a_task_is_the_run_with_some_settings_changed(tmp_path):
    config = mixed(
        algorithm__kl={"placement": "loss"}, rollout__staleness=1, rollout__temperature=0.7
    )
    sums, words, pairs = config.by_task.values()
    assert [task.recipe for task in (sums, words, pairs)] == ["rl", "sft", "dpo"]
    assert (sums.algorithm, sums.reward.function) == (config.algorithm, "exact_match")
    assert (words.algorithm.kl.placement, words.rollout.staleness) == ("none", 0)
    assert (words.batch.size, pairs.batch.size) == (4, config.batch.size)
    assert sums.rollout == config.rollout and pairs.rollout.temperature == 0.7
    assert [*config.role_settings] == ["actor", "reference"] and config.generates
    assert {"tasks.words.train", "tasks.pairs.train"} <= config.sources.keys()
    assert "tasks.sums.reward" in config.rewards
    (tmp_path / "run.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "run.yaml") == config


def test_the_first_task_stands_for_a_run_that_has_no_recipe_and_data_of_its_own():
    given = tree(tasks={"words": TASKS["words"] | {"weight": 1}})
    del given["recipe"], given["data"]
    config = parse_config(given)
    assert (config.recipe, config.data.train.paths) == ("sft", ["words.jsonl"])


def test_a_schedule_is_linear_between_its_steps():
    schedule = {"schedule": {10: 0.9, 110: 0.1}}
    other = {"schedule": {10: 0.1, 110: 0.9}}
    easy = mixed(tasks={"easy": schedule, "hard": other}).tasks["easy"]
    shares = [easy.share(step, 0.5) for step in (1, 10, 60, 110, 999)]
    assert shares == pytest.approx([0.9, 0.9, 0.5, 0.1, 0.1])


def changed(name, **changes):
    return {"tasks": TASKS | {name: TASKS[name] | changes}}


def guard(**changes):
    return {"guards": {"low": {"metric": "a", "below": 1.0} | changes}}


REFUSED = [
    ("sum to 0.9 at step 1", changed("sums", weight=0.4)),
    ("sum to 0.8 at step 50", changed("sums", weight=None, schedule={1: 0.5, 50: 0.3})),
    ("weight and schedule", changed("sums", schedule={1: 0.5})),
    ("tasks.sums: has no weight", changed("sums", weight=None)),
    ("mix.min_weight = 0.4 for 3 tasks", {"mix": {"min_weight": 0.4}}),
    ("mix.by = success", {"mix": {"by": "success"}}),
    ("decay = 0.5 has no effect", {"mix": {"decay": 0.5}}),
    ("mix has no effect without tasks", {"mix": {"min_weight": 0.1}, "tasks": {}}),
    ("epochs = 2 with tasks", {"epochs": 2, "steps": None}),
    (
        "rollout.staleness = 1 with recipe: sft",
        {"tasks": {"a": {"recipe": "sft"}}, "recipe": "sft", "rollout__staleness": 1},
    ),
    ("rollout.staleness = 2", {"rollout__staleness": 2}),
    ("tasks.words.num_samples", changed("words", num_samples=2)),
    ("tasks.words.reward", changed("words", reward={"function": "gsm8k"})),
    ("tasks.sums.recipe = reward_model", {"recipe": "reward_model"}),
    (
        "tasks.sums: rollout.num_samples = 1",
        changed("sums", num_samples=1) | {"rollout__num_samples": 1},
    ),
    ("tasks.pairs: train.kind = reasoning_gym", changed("pairs", train=SUMS)),
    ("tasks.words.batchsize: no such setting", changed("words", batchsize=2)),
    ("recipe: no task reads it", {"recipe": "kto"} | changed("sums", recipe="rl")),
    ("data.train: no task reads it", changed("sums", train=SUMS)),
    ("batch.size: no task reads it", {"tasks": {"a": {"batch_size": 2}}, "batch__size": 4}),
    (
        "batch.refill_rounds: no task",
        {"recipe": "sft", "batch__refill_rounds": 1, "tasks": {"a": {}}},
    ),
    ("rollout.num_samples: no task reads it", changed("sums", num_samples=2)),
    (
        "rollout.temperature: no task reads it",
        changed("sums", temperature=0.5) | {"rollout__temperature": 0.7},
    ),
    ("algorithm.kto: no task reads it", {"algorithm__kto": {"beta": 0.3}}),
    (
        "distillation.task_reward_weight: no task reads it",
        {"distillation": {"name": "reverse_kl", "task_reward_weight": 0.5}},
    ),
    ("roles.teacher: no operator", {"roles": {"teacher": {"path": "models/other"}}}),
    ("give one of below, above, drop", guard(drop=1.0)),
    ("no such task; did you mean sums", guard(metric="task/sum/x")),
    ("the run evaluates nothing", guard(metric="val/accuracy")),
    ("checkpoint.every = 0", guard(**BACK)),
    ("checkpoint.keep to at least 6", guard(**BACK, over=9) | {"checkpoint": SAVES}),
    (
        "checkpoint.keep to at least 11",
        guard(**BACK | {"metric": "task/pairs/actor/loss"}, over=4) | {"checkpoint": SAVES},
    ),
    (
        "checkpoint.keep to at least 41",
        guard(**BACK | {"metric": "task/sums/actor/loss"}, over=4)
        | {"checkpoint": SAVES, "mix": {"by": "success"}}
        | {"tasks": {"sums": TASKS["sums"], "other": {"weight": 0.5}}},
    ),
    (
        "its share may be 0; set mix.min_weight",
        guard(**BACK | {"metric": "task/pairs/actor/loss"})
        | {"checkpoint": SAVES, "mix": {"min_weight": 0}}
        | {"tasks": {"sums": {"weight": 1.0}, "pairs": TASKS["pairs"] | {"weight": 0.0}}},
    ),
    ("max_rollbacks = 5 has no effect", guard(max_rollbacks=5)),
]


@pytest.mark.parametrize(("words", "changes"), REFUSED)
def test_what_cannot_be_honoured_is_refused_with_its_reason(words, changes):
    with pytest.raises(ConfigError, match=re.escape(words)):
        mixed(**changes)


def test_a_task_of_pairs_leaves_the_reward_of_others_and_evaluation_alone():
    tasks = TASKS | {"sums": {"weight": 0.5}}
    config = mixed(tasks=tasks, reward__import_timeout_s=60, data__evaluation=SUMS)
    assert config.by_task["sums"].reward.import_timeout_s == 60
    with pytest.raises(ConfigError, match=r"data\.evaluation\.kind = reasoning_gym"):
        parse(recipe="dpo", data__evaluation=SUMS)


def test_a_rollback_is_accepted_with_enough_steps():
    for metric in ("actor/grad_norm", "task/pairs/weight"):
        config = mixed(**guard(**BACK | {"metric": metric}, over=4), checkpoint=SAVES)
        assert isinstance(config, RunConfig)
    guarded = guard(**BACK | {"metric": "task/sums/actor/loss"}, over=2)
    assert isinstance(mixed(**guarded, checkpoint=SAVES), RunConfig)


def test_the_examples_of_the_page_and_of_the_configurations_are_runs():
    root = Path(__file__).parents[3]
    page = (root / "docs/tasks.md").read_text()
    config = parse_config(read_yaml(page.split("```yaml\n")[1].split("```")[0]))
    assert [task.recipe for task in config.by_task.values()] == ["rl", "sft", "dpo"]
    config = load_config(root / "configs/run/examples/tasks.yaml")
    assert config.tasks["imitated"].share(100, 0.5) == config.mix.min_weight
