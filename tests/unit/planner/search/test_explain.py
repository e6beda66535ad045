"""The reasons that a search gives, and the settings that it finds."""

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import PUBLISHED
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.search.emit import overrides_of
from verl_hpc.planner.search.explain import explain, placed_text
from verl_hpc.planner.search.search import search
from verl_hpc.planner.timing.machine import Machine

H100 = Machine(Hardware(KINDS["H100-80"], 8))
OFFLOAD = {"offload": {"parameters": True, "gradients": True, "optimizer": True}}
LONG = {"rollout__max_prompt_tokens": 1024, "rollout__max_response_tokens": 4096}


def searched(model, num_ranks, **changes):
    config = parse(batch__size=256, **OFFLOAD, **LONG, **changes)
    archs = dict.fromkeys(config.role_settings, architecture_from(PUBLISHED[model][0]))
    return search(config, archs, H100, num_ranks)


def test_a_mixture_of_experts_has_expert_parallelism_in_its_settings():
    best = searched("Qwen3-30B-A3B", 32).best
    size = best.options["actor"].cut.layout.ep
    assert size > 1
    assert overrides_of(parse(), best)["parallel"]["expert_parallel"] == size


def test_reasons():
    found = searched("Llama-3.1-8B", 16, **GAE)
    best, other = found.ranking
    lines = explain(found)
    assert len(lines) == 2 and lines[0].startswith(placed_text(best))
    assert f"{other.seconds - best.seconds:.1f} s more" in lines[1]
    assert explain(found, (1.0, other.seconds - 0.01)) == lines
    (near,) = explain(found, (1.0, other.seconds))[2:]
    assert near.startswith("1 of these are within the band of the best (1.0 to ")
    assert placed_text(best) == "actor + critic on 16 ranks"
    assert best.gpu_hours == pytest.approx(16 * best.seconds / 3600)


def test_what_does_not_fit_is_said():
    found = searched("Llama-3.1-70B", 64, **GAE)
    assert len(found.ranking) + len(found.misfits) == found.placements
    lines = explain(found)
    assert sum("does not fit" in line for line in lines) == len(found.misfits)
