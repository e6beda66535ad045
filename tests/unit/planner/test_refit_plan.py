"""The plan of a run's weights, on the login node."""

from tests.unit.config.trees import parse
from tests.unit.layout.models import architecture
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.refit_plan import refit_plans

ARCH = architecture(num_layers=4, tied_embeddings=False)


def planned(**changes):
    config = parse(batch__size=4, **changes)
    layouts = run_layouts(config, ARCH, 4, ranks_per_node=2)
    return refit_plans(config, ARCH, layouts, Hardware(KINDS["H100-80"], 2))[-1]


def layers_by_rank(plan):
    found = {}
    for bundle in plan.bundles:
        for fragment in bundle.fragments:
            if fragment.tensor.startswith("model.layers."):
                layer = int(fragment.tensor.split(".")[2])
                for rank in bundle.targets:
                    found.setdefault(rank, set()).add(layer)
    return found


def test_a_rank_of_a_rollout_engine_gets_the_layers_of_its_stage():
    plan = planned(rollout__tensor_parallel=1, rollout__pipeline_parallel=2)
    assert layers_by_rank(plan) == {0: {0, 1}, 1: {2, 3}, 2: {0, 1}, 3: {2, 3}}
    plan = planned(rollout__tensor_parallel=2)
    assert layers_by_rank(plan) == {rank: {0, 1, 2, 3} for rank in range(4)}


def test_adapters_are_planned_beside_the_base():
    config = parse(batch__size=4, lora={"rank": 8, "target_modules": ["o_proj"]})
    layouts = run_layouts(config, ARCH, 4, ranks_per_node=2)
    base, adapters = refit_plans(config, ARCH, layouts, Hardware(KINDS["H100-80"], 2))
    names = {f.tensor for bundle in adapters.bundles for f in bundle.fragments}
    pairs = {f"model.layers.{n}.self_attn.o_proj.lora_{x}.weight" for n in range(4) for x in "AB"}
    assert names == pairs
    assert not names & {f.tensor for bundle in base.bundles for f in bundle.fragments}


def test_a_run_is_planned_once():
    assert planned() is planned()
