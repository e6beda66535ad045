"""Scaling on paper, and the reasons that a search gives."""

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import PUBLISHED
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.search.emit import overrides_of
from verl_hpc.planner.search.explain import explain, layouts_text, placed_text
from verl_hpc.planner.search.scaling import breaks_at, scaling_rows
from verl_hpc.planner.search.search import search
from verl_hpc.planner.timing.machine import Machine

H100 = Machine(Hardware(KINDS["H100-80"], 8))
OFFLOAD = {"offload": {"parameters": True, "gradients": True, "optimizer": True}}
LONG = {"rollout__max_prompt_tokens": 1024, "rollout__max_response_tokens": 4096}


def rows(model, weak, sizes=(8, 16, 64, 512, 4096), **changes):
    config = parse(batch__size=256, **OFFLOAD, **LONG, **changes)
    arch = architecture_from(PUBLISHED[model][0])
    archs = dict.fromkeys(config.role_settings, arch)
    return scaling_rows(model, config, archs, H100, sizes, weak=weak)


def test_strong_scaling_ends_where_the_longest_response_is_all():
    found = rows("Llama-3.1-8B", weak=False)
    seconds = [row.seconds for row in found]
    assert seconds == sorted(seconds, reverse=True)
    efficiencies = [row.efficiency for row in found]
    assert efficiencies == sorted(efficiencies, reverse=True) and efficiencies[0] == 1.0
    broken = breaks_at(found)
    assert broken is not None and broken.limited_by == "rollout"
    assert "longest response" in broken.why
    assert {row.sequences for row in found} == {1024}


def test_weak_scaling_keeps_the_rule():
    found = rows("Llama-3.1-8B", weak=True)
    assert breaks_at(found) is None
    assert [row.sequences for row in found] == [1024 * row.num_ranks // 8 for row in found]
    tokens = [row.tokens_per_second for row in found]
    assert tokens == sorted(tokens)


def test_what_does_not_fit_is_a_row_without_seconds():
    found = rows("Llama-3.1-70B", weak=False, sizes=(8, 64))
    assert found[0].seconds is None and found[0].candidate is None
    assert found[1].efficiency == 1.0 and found[1].limited_by == ""


def test_a_mixture_of_experts_has_expert_parallelism_in_its_settings():
    (row,) = rows("Qwen3-30B-A3B", weak=False, sizes=(32,))
    size = row.candidate.options["actor"].cut.layout.ep
    assert size > 1
    assert overrides_of(parse(), row.candidate)["parallel"]["expert_parallel"] == size


def test_reasons():
    config = parse(batch__size=256, **OFFLOAD, **LONG, **GAE)
    arch = architecture_from(PUBLISHED["Llama-3.1-8B"][0])
    found = search(config, dict.fromkeys(config.role_settings, arch), H100, 16)
    best, other = found.ranking
    lines = explain(found)
    assert len(lines) == 2 and lines[0].startswith(placed_text(best))
    assert f"{other.seconds - best.seconds:.1f} s more" in lines[1]
    assert placed_text(best) == "actor + critic on 16 ranks"
    assert layouts_text(best)["rollout"] == f"TP{best.rollout_tp}"
    assert best.gpu_hours == pytest.approx(16 * best.seconds / 3600)


def test_what_does_not_fit_is_said():
    config = parse(batch__size=256, **OFFLOAD, **LONG, **GAE)
    arch = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
    found = search(config, dict.fromkeys(config.role_settings, arch), H100, 64)
    assert len(found.ranking) + len(found.misfits) == found.placements
    lines = explain(found)
    assert sum("does not fit" in line for line in lines) == len(found.misfits)
