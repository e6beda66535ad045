"""Roles that share their frozen weights in memory, and what is refused."""

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import architecture
from verl_hpc.placement.bases import shared_bases_text
from verl_hpc.placement.layouts import run_layouts

MODEL = architecture(vocab_size=128, max_positions=1024)
TP2 = {"tensor_parallel": 2, "sequence_parallel": True}


def bases(num_ranks=4, critic=None, **changes):
    config = parse(**GAE, **{"lora": {}} | changes, roles={"critic": critic or {}})
    return run_layouts(config, MODEL, num_ranks).bases


def test_a_critic_with_adapters_has_the_actors():
    assert bases() == {"critic": "actor"}
    assert shared_bases_text(bases()) == [
        "critic computes with actor's frozen weights, which are in memory once"
    ]
    other = {"rank": 3, "target_modules": ["q_proj"]}
    assert bases(parallel=TP2, critic={"parallel": TP2, "lora": other}) == {"critic": "actor"}
    recomputes = {"parallel": {"recompute": "full"}, "offload": {"optimizer": True}}
    assert bases(critic=recomputes) == {"critic": "actor"}


@pytest.mark.parametrize(
    ("critic", "changes"),
    [
        ({"dtype": "float32"}, {}),
        ({"path": "b"}, {}),
        ({"parallel": TP2}, {}),
        ({"parallel": {"pipeline_parallel": 2}}, {}),
        ({"parallel": {"context_parallel": 2}}, {}),
        ({}, {"placement": {"actor": "0-1", "critic": "2-3"}}),
        ({"offload": {"parameters": True}}, {}),
        ({"lora": {"share_base": False}}, {}),
        ({"lora": "none"}, {}),
        ({}, {"parallel": {"engine": "fsdp"}}),
    ],
)
def test_what_tells_them_apart_gives_each_its_own(critic, changes):
    assert bases(critic=critic, **changes) == {}


def test_the_first_of_roles_that_are_alike_has_them():
    """What ends in a number has no output layer to lend to one that needs it."""

    def own_recipe(**actor):
        roles = {
            "actor": actor,
            "critic": {"trainable": True},
            "cost_critic": {"trainable": True},
            "prm": {"trainable": True, "path": "models/tiny"},
            "other": {"trainable": True, "path": "models/other"},
        }
        config = parse(recipe="mine.py:recipe", lora={}, roles=roles)
        return run_layouts(config, MODEL, 4).bases

    assert own_recipe() == {"cost_critic": "actor", "critic": "actor", "prm": "actor"}
    assert own_recipe(parallel=TP2) == {"cost_critic": "critic"}
