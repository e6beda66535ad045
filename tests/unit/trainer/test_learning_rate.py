"""Learning rates that fall over the whole run."""

import pytest

from tests.unit.config.trees import GAE, parse
from verl_hpc.errors import ConfigError
from verl_hpc.trainer.build import with_decay_steps

COSINE = {"optimizer": {"schedule": "cosine", "warmup_steps": 2}}


def decay_steps(num_steps, **changes):
    config = parse(**changes)
    found = with_decay_steps(config, config.role_settings, num_steps)
    return {name: role.optimizer.decay_steps for name, role in found.items() if role.optimizer}


def test_a_rate_falls_over_all_optimizer_steps_of_the_run():
    batch = {"batch": {"size": 8, "mini_batches": 2, "update_epochs": 3}}
    assert decay_steps(10, **COSINE, **batch) == {"actor": 60}
    given = {"optimizer": {"schedule": "cosine", "decay_steps": 7}}
    assert decay_steps(10, **given, **batch) == {"actor": 7}
    assert decay_steps(10, **batch) == {"actor": None}


def test_an_actor_that_waits_for_its_critic_has_fewer():
    critic = {"roles": {"critic": COSINE}, "critic": {"warmup_steps": 4}}
    assert decay_steps(10, **COSINE, **GAE, **critic) == {"actor": 6, "critic": 10}


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_run_that_is_no_longer_than_its_warm_up_is_refused(num_steps):
    words = f"warmup_steps = 2 with schedule: cosine, and it takes {num_steps} optimizer steps"
    with pytest.raises(ConfigError, match=words):
        decay_steps(num_steps, **COSINE)
    assert decay_steps(3, **COSINE) == {"actor": 3}
