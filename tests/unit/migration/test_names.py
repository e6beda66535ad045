"""Several names of one key, and keys whose values say nothing."""

import pytest

from tests.unit.migration.cases import WORDS as BASE
from verl_hpc.errors import ConfigError
from verl_hpc.migration.translate import migrate, migrate_tree
from verl_hpc.migration.words import read_words


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.n_gpus_per_node=8", "num_rollout_workers=2"),
        ("num_rollout_workers=2", "trainer.n_gpus_per_node=8"),
        ("kl_coef=0.1", "algorithm.kl_ctrl.kl_coef=0.2"),
        ("algorithm.kl_ctrl.kl_coef=0.2", "kl_coef=0.1"),
        ("lr=1e-5", "learning_rate=2e-5"),
        ("trainer.total_training_steps=10", "steps=3"),
        ("algorithm=ppo", "algorithm.adv_estimator=grpo"),
        ("model.reward_function=math", "verl_hpc.reward.function=code"),
        ("custom_reward_function.path=a.py", "reward.custom_reward_function.path=b.py"),
    ],
)
def test_two_names_of_one_key_with_different_values(words):
    refused = migrate(words).refused
    names = [word.partition("=")[0] for word in words]
    found = [str(one) for one in refused if all(name in str(one) for name in names)]
    assert len(found) == 1 and "give one" in found[0]
    # Equal ones say the same.
    assert not migrate([*BASE, "lr=1e-5", "learning_rate=1e-5", "steps=10"]).refused


def test_a_batch_of_all_ranks_beside_that_of_one():
    words = ["data.train_files=a", "model.path=m", "engine.num_gpus=2", "steps=1"]
    words.append("data.batch_size_per_gpu=4")
    found = migrate([*words, "data.train_batch_size=64"]).refused
    assert [one.key for one in found] == ["data.batch_size_per_gpu"]
    assert "= 4, but data.train_batch_size = 64" in str(found[0])
    assert not migrate([*words, "data.train_batch_size=8"]).refused


def test_a_switch_beside_what_implies_it():
    words = ["kl_coef=0.1", "algorithm.use_kl_in_reward=False"]
    for order in (words, words[::-1]):
        assert not migrate([*BASE, *order]).refused


def test_a_tutorials_key_that_is_refused_hides_no_other():
    found = migrate([*BASE, "algorithm=dreamer", "trainer.device=tpu", "num_rollout_workers=x"])
    assert {one.key for one in found.refused} == {
        "algorithm",
        "trainer.device",
        "num_rollout_workers",
    }
    assert found.settings["model.path"] == "m"


@pytest.mark.parametrize("engine", [["megatron"], "nope", 3, None])
def test_an_engine_that_is_not_there(engine):
    word = "null" if engine is None else str(engine)
    of_file = migrate_tree({"trainer": {"nnodes": 1}, "model_engine": engine})
    for found in (of_file, migrate([*BASE, f"model_engine={word}"])):
        assert "no such engine is here; expected dp, fsdp, megatron" in str(found.refused[0])


def test_the_engine_of_a_file():
    word = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1"
    assert not migrate_tree({"model_engine": "megatron"}, [*BASE, word]).refused
    of_actor = {"actor_rollout_ref": {"actor": {"model_engine": "megatron"}}}
    assert not migrate_tree(of_actor, [*BASE, word]).refused
    assert not migrate_tree({"model_engine": "dp"}, BASE).refused


@pytest.mark.parametrize(
    "words", [["--actor_model", "--use_fsdp"], ["--actor_model"], ["--seed", "1", "--lr"]]
)
def test_an_option_without_a_value(words):
    with pytest.raises(ConfigError, match="has no value; expected --"):
        read_words(words)


def test_the_option_that_chooses_fsdp():
    assert read_words(["--use_fsdp", "--actor_model", "gpt2"]).given == {
        "use_fsdp": True,
        "actor_model": "gpt2",
    }
    found = migrate([*BASE[:2], "steps=1", "--use_fsdp", "--actor_model", "gpt2"])
    assert not found.refused
    assert (found.settings["model.path"], found.settings["parallel.engine"]) == ("gpt2", "fsdp")
    both = migrate([*BASE, "--use_fsdp", "actor_rollout_ref.actor.strategy=megatron"])
    assert "use_fsdp: = True, but actor_rollout_ref.actor.strategy" in str(both.refused[0])
