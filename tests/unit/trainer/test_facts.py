"""What a run writes about itself for its report and for `status`."""

from types import SimpleNamespace

import pytest

from tests.unit.config.trees import GAE, parse
from verl_hpc.placement.layouts import place_roles
from verl_hpc.runs.ranks import Placed
from verl_hpc.trainer.facts import placements, run_facts
from verl_hpc.trainer.records import Result
from verl_hpc.trainer.state import START


def planned(num_ranks=4, num_nodes=1, **changes):
    """A run of which only the plan is there."""
    config = parse(**changes)
    layouts = place_roles(config, num_ranks)
    roles = {
        name: SimpleNamespace(
            settings=settings,
            layout=layouts.train[name],
            place=layouts.pools[layouts.pool_of[name]],
        )
        for name, settings in config.role_settings.items()
    }
    return SimpleNamespace(
        config=config,
        arch=SimpleNamespace(num_parameters=7, is_mapped=False),
        rollout=SimpleNamespace(shard_map=SimpleNamespace(num_bytes=14_000)),
        session=SimpleNamespace(world=SimpleNamespace(size=num_ranks, num_nodes=num_nodes)),
        roles=roles,
        layouts=layouts,
        reward=print,
        problems=SimpleNamespace(facts={}),
        fingerprint={"prompts": "texts as they stand"},
        num_steps=config.num_steps(10),
        kernels={},
    )


def facts(run):
    return run_facts(run, Result(START, "finished"))


@pytest.mark.parametrize(
    ("ranks", "nodes", "told"), [(2, 1, "2 on 1 node"), (8, 2, "8 on 2 nodes")]
)
def test_facts_tell_ranks_and_nodes(ranks, nodes, told):
    found = facts(planned(ranks, nodes))
    assert (found["ranks"], found["num_ranks"], found["num_nodes"]) == (told, ranks, nodes)


SPLIT = {
    **GAE,
    "roles": {"critic": {"parallel": {"tensor_parallel": 2}}, "reward": {"path": "models/judge"}},
    "placement": {"train": 0, "critic": "1-2", "reward": 3, "rollout": 0},
}
FACTS = {
    "one layout": (
        {**GAE, "algorithm__kl": {"placement": "reward"}, "parallel__tensor_parallel": 2},
        {
            "training layout": "tp 2, pp 1, dp 2, vpp 1",
            "weights for the rollout": "whole tensors by their names in the model's files, "
            "14,000 bytes on each rank",
            "rollout layout": "vllm, tp 1 x 4, zero_redundancy",
            "roles": "actor: trained; critic: value head, trained; "
            "reference: not trained, the first weights of the actor, in its engine",
        },
    ),
    "roles apart": (
        SPLIT,
        {
            "actor": "trained, tp 1, pp 1, dp 1, vpp 1 on rank 0",
            "critic": "value head, trained, tp 2, pp 1, dp 1, vpp 1 on ranks 1-2",
            "reward": "models/judge, score head, not trained, tp 1, pp 1, dp 1, vpp 1 on rank 3",
            "rollout layout": "vllm, tp 1 x 1, zero_redundancy on rank 0",
        },
    ),
}


@pytest.mark.parametrize(("changes", "expected"), FACTS.values(), ids=FACTS)
def test_roles_of_one_layout_share_a_line_and_roles_apart_have_one_each(changes, expected):
    run = planned(**changes)
    assert facts(run) | expected == facts(run)
    assert bool(placements(run)) is (changes is SPLIT)


def test_placements_of_a_split_run_have_its_roles():
    assert placements(planned(**SPLIT)) == [
        Placed("train", 0, 0, ("actor",)),
        Placed("critic", 1, 2, ("critic",)),
        Placed("reward", 3, 3, ("reward",)),
        Placed("rollout", 0, 0, ("rollout",)),
    ]


def test_the_reward_functions_ranks_are_named_where_they_are_its_own():
    run = planned(placement={"train": "0-1", "reward": "2-3", "rollout": "0-1"})
    expected = [("train", ("actor",)), ("rollout", ("rollout",)), ("reward", ("reward function",))]
    assert [(p.name, p.roles) for p in placements(run)] == expected
    assert facts(run)["reward function"] == "auto on ranks 2-3"
    assert "reward function" not in facts(planned())
    own = {name: {"reward": {"function": name}} for name in ("math", "exact_match")}
    run = planned(placement={"train": "0-1", "reward": "2-3", "rollout": "0-1"}, tasks=own)
    assert facts(run)["reward function"] == "exact_match, math on ranks 2-3"
