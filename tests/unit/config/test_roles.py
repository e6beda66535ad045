"""What a role takes from where, and the settings that it cannot have."""

import pytest

from tests.unit.config.trees import GAE, parse
from verl_hpc.errors import ConfigError

KL = {"algorithm__kl": {"placement": "reward"}}
OWN = {"recipe": "my/recipe.py:mine"}


def test_a_shared_reference_is_the_actor_as_it_was():
    actor = {"path": "models/a", "dtype": "bfloat16", "parallel": {"tensor_parallel": 2}}
    settings = parse(**KL, roles={"actor": actor}).role_settings
    reference = settings["reference"]
    assert reference.shares == "actor" and not reference.trainable
    for name in ("head", "model", "parallel", "label", "offload"):
        assert getattr(reference, name) == getattr(settings["actor"], name)


def test_a_reference_with_a_path_shares_nothing():
    actor = {"parallel": {"tensor_parallel": 2}}
    settings = parse(**KL, roles={"actor": actor, "reference": {"path": "models/r"}}).role_settings
    assert settings["reference"].shares is None
    assert settings["reference"].parallel.tensor_parallel == 1


def test_a_reference_without_an_actor_is_a_model_of_its_own():
    settings = parse(**OWN, roles={"student": {"trainable": True}, "reference": {}}).role_settings
    assert settings["reference"].shares is None
    assert settings["reference"].label == "train"


UNFIT_SETTINGS = [
    (
        GAE | {"roles": {"critic": {"head": "language_model"}}},
        "roles.critic.head = language_model: recipe rl needs value",
    ),
    ({"roles": {"actor": {"head": "score"}}}, "needs language_model"),
    ({"roles": {"actor": {"trainable": False}}}, "roles.actor.trainable = false: .*trains"),
    ({"roles": {"reward": {"trainable": True}}}, "roles.reward.trainable = true: .*not train"),
    (
        {"roles": {"reward": {"path": "models/r", "optimizer": {"lr": 1e-5}}}},
        "roles.reward.optimizer: this role is not trained; .*roles.reward.trainable: true",
    ),
    (KL | {"roles": {"reference": {"offload": {}}}}, "roles.reference.offload: .*the actor's"),
    (
        KL | {"roles": {"reference": {"head": "language_model"}}},
        "roles.reference.head: .*the actor's",
    ),
    (OWN | {"roles": {"judge": {"optimizer": {"lr": 1e-5}}}}, "roles.judge.optimizer"),
]


@pytest.mark.parametrize(("changes", "words"), UNFIT_SETTINGS)
def test_settings_that_a_role_cannot_have(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(**changes)


def test_a_role_of_ones_own_may_be_anything():
    roles = {"actor": {"head": "value", "trainable": False}, "judge": {"trainable": True}}
    settings = parse(**OWN, roles=roles).role_settings
    assert settings["actor"].head == "value" and not settings["actor"].trainable
    assert settings["judge"].trainable
