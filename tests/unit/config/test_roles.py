"""Roles of a run: which there are, and what each takes from where."""

import yaml

from tests.unit.config.trees import GAE, parse
from verl_hpc.config.load import dump_config, parse_config

KL = {"algorithm__kl": {"placement": "reward"}}
OWN = {"recipe": "my/recipe.py:mine"}


def test_a_shared_reference_is_the_actor_as_it_was():
    actor = {"path": "models/a", "dtype": "bfloat16", "parallel": {"tensor_parallel": 2}}
    settings = parse(**KL, roles={"actor": actor}).role_settings
    reference = settings["reference"]
    assert reference.shares == "actor" and not reference.trainable
    for name in ("head", "model", "parallel", "label", "offload"):
        assert getattr(reference, name) == getattr(settings["actor"], name)


def test_a_reference_with_a_path_or_without_an_actor_is_a_model_of_its_own():
    actor = {"parallel": {"tensor_parallel": 2}}
    settings = parse(**KL, roles={"actor": actor, "reference": {"path": "models/r"}}).role_settings
    assert settings["reference"].shares is None
    assert settings["reference"].parallel.tensor_parallel == 1
    settings = parse(**OWN, roles={"student": {"trainable": True}, "reference": {}}).role_settings
    assert settings["reference"].shares is None
    assert settings["reference"].label == "train"


def test_a_role_of_ones_own_may_be_anything():
    roles = {"actor": {"head": "value", "trainable": False}, "judge": {"trainable": True}}
    settings = parse(**OWN, roles=roles).role_settings
    assert settings["actor"].head == "value" and not settings["actor"].trainable
    assert settings["judge"].trainable


def test_a_critic_learns_faster_than_the_actor_in_an_engine_of_its_own():
    chosen = {"engine": "fsdp", "recompute": "full", "fsdp": {"reshard_after_forward": False}}
    config = parse(**GAE, roles={"critic": {"parallel": chosen}})
    actor, critic = (config.role_settings[name] for name in ("actor", "critic"))
    assert (critic.optimizer.lr, actor.optimizer.lr, config.optimizer.lr) == (1e-5, 1e-6, 1e-6)
    assert actor.parallel.engine == "megatron"
    assert not critic.parallel.fsdp.reshard_after_forward


def adapted(**changes):
    return parse(**GAE, algorithm__kl={"placement": "loss"}, **changes).role_settings


def test_what_is_trained_has_the_adapters_of_the_run_or_its_own():
    own = {"critic": {"lora": {"rank": 4, "target_modules": ["q_proj"]}}}
    found = adapted(lora={"rank": 8}, roles=own)
    assert (found["actor"].lora.rank, found["actor"].lora.scale) == (8, 4.0)
    assert (found["critic"].lora.rank, found["critic"].lora.targets) == (4, ("q_proj",))
    assert (found["reference"].shares, found["reference"].lora) == ("actor", None)
    without = adapted(lora={}, roles={"critic": {"lora": "none"}})
    assert without["actor"].lora is not None
    assert without["critic"].lora is None
    assert all(role.lora is None for role in adapted().values())


TEACHER = {"recipe": "distillation", "roles": {"teacher": {"path": "models/teacher"}}}
EARNS = {"name": "reverse_kl", "task_reward_weight": 0.5}


def test_the_reverse_kl_is_followed_if_nothing_is_said():
    config = parse(**TEACHER)
    assert config.method == "distillation (reverse_kl)"
    assert [*config.role_settings] == ["actor", "teacher"]
    assert not config.role_settings["teacher"].trainable
    assert not config.calls_reward and config.generates
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_a_task_reward_is_scored_by_its_function_or_by_a_model():
    assert parse(**TEACHER, distillation=EARNS).calls_reward
    roles = TEACHER["roles"] | {"reward": {"path": "models/judge"}}
    config = parse(recipe="distillation", roles=roles, distillation=EARNS)
    assert [*config.role_settings] == ["actor", "teacher", "reward"]
    assert not config.calls_reward


def test_a_recipe_of_ones_own_may_generate_nothing():
    assert parse(recipe="mine.py:dpo").generates
    assert not parse(recipe="mine.py:dpo", rollout__engine="none").generates
