"""Adapters where they cannot be honoured, or have no effect, are refused by name."""

import pytest

from tests.unit.config.trees import parse
from verl_hpc.errors import ConfigError

CHOSEN = {"algorithm__advantage": {"name": "gae"}, "algorithm__kl": {"placement": "loss"}}


def settings(**changes):
    return parse(**CHOSEN | changes).role_settings


def test_what_is_trained_has_the_adapters_of_the_run_or_its_own():
    own = {"critic": {"lora": {"rank": 4, "target_modules": ["q_proj"]}}}
    found = settings(lora={"rank": 8}, roles=own)
    assert (found["actor"].lora.rank, found["actor"].lora.scale) == (8, 4.0)
    assert (found["critic"].lora.rank, found["critic"].lora.targets) == (4, ("q_proj",))
    assert (found["reference"].shares, found["reference"].lora) == ("actor", None)
    without = settings(lora={}, roles={"critic": {"lora": "none"}})
    assert without["actor"].lora is not None
    assert without["critic"].lora is None
    assert all(role.lora is None for role in settings().values())


REFUSED = [
    (r"model.fp8 with lora", {"lora": {}, "model": {"path": "m", "fp8": {}}}),
    (r"roles.reference.lora: this role is not trained", {"roles": {"reference": {"lora": {}}}}),
    (r"roles.critic.lora = none, and no section lora", {"roles": {"critic": {"lora": "none"}}}),
    (
        r"lora.path with a reference that has an engine of its own",
        {"lora": {"path": "a"}, "roles": {"reference": {"dtype": "float32"}}},
    ),
    (r"lora.target_modules.* names no module", {"lora": {"target_modules": []}}),
    (r"names a module twice", {"lora": {"target_modules": ["q_proj", "q_proj"]}}),
    (r"lora.rank", {"lora": {"rank": 0}}),
]


@pytest.mark.parametrize(("message", "changes"), REFUSED)
def test_refused(message, changes):
    with pytest.raises(ConfigError, match=message):
        settings(**changes)
