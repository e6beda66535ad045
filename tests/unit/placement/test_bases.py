"""Roles that share their frozen weights in memory, and what is refused."""

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import architecture
from verl_hpc.errors import ConfigError
from verl_hpc.placement.bases import shared_bases_text
from verl_hpc.placement.layouts import run_layouts

MODEL = architecture(vocab_size=128, max_positions=1024)
TP2 = {"tensor_parallel": 2, "sequence_parallel": True}


def bases(num_ranks=4, critic=None, **changes):
    config = parse(**GAE, **{"lora": {}} | changes, roles={"critic": critic or {}})
    return run_layouts(config, MODEL, num_ranks).bases


def test_a_critic_with_adapters_has_the_actors():
    assert bases() == {"critic": "actor"}
    assert bases(lora={"share_base": True}) == {"critic": "actor"}
    assert shared_bases_text(bases()) == [
        "critic computes with actor's frozen weights, which are in memory once"
    ]
    other = {"rank": 3, "target_modules": ["q_proj"]}
    assert bases(parallel=TP2, critic={"parallel": TP2, "lora": other}) == {"critic": "actor"}
    recomputes = {"parallel": {"recompute": "full"}, "offload": {"optimizer": True}}
    assert bases(critic=recomputes) == {"critic": "actor"}


@pytest.mark.parametrize(
    ("told", "critic", "changes"),
    [
        ("dtype = float32, bfloat16", {"dtype": "float32"}, {}),
        ("path = b, models/tiny", {"path": "b"}, {}),
        ("tensor_parallel = 2, 1", {"parallel": TP2}, {}),
        ("pipeline_parallel = 2, 1", {"parallel": {"pipeline_parallel": 2}}, {}),
        ("context_parallel = 2, 1", {"parallel": {"context_parallel": 2}}, {}),
        ("ranks = 2-3, 0-1", {}, {"placement": {"actor": "0-1", "critic": "2-3"}}),
        ("offload.parameters = true, false", {"offload": {"parameters": True}}, {}),
        ("roles.critic.lora.share_base = false", {"lora": {"share_base": False}}, {}),
    ],
)
def test_what_tells_them_apart_gives_each_its_own_or_is_refused_by_name(told, critic, changes):
    assert bases(critic=critic, **changes) == {}
    with pytest.raises(ConfigError) as caught:
        bases(critic=critic, **changes, lora={"share_base": True})
    said = str(caught.value)
    assert said.startswith("lora.share_base = true: the frozen weights of ")
    assert "(critic, actor): " in said
    assert told in said


def test_a_role_that_trains_everything_has_nothing_to_share():
    assert bases(critic={"lora": "none"}) == {}
    with pytest.raises(ConfigError, match=r"share_base = true: .* actor alone has adapters"):
        bases(critic={"lora": "none"}, lora={"share_base": True})


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
