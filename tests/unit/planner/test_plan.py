"""A run's plan: what it says, and what it is the best of."""

import json
import re
from dataclasses import replace
from functools import cache
from math import isfinite

import pytest

from tests.unit.cluster.requests import ROOT
from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import PUBLISHED, architecture
from verl_hpc.cli.plan_text import as_text
from verl_hpc.config.load import load_config
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from, read_architecture
from verl_hpc.placement.layouts import placement_of, run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.plan import Plan, Planner
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step
from verl_hpc.planner.timing.workload import workload_of

SIZES = ROOT / "configs/model"
SHIPPED = {
    "ppo_70b": ("Llama-3.1-70B-Instruct", 16),
    "grpo_8b": ("Qwen3-8B", 2),
    "grpo_32b_fp8": ("Qwen2.5-32B-Instruct", 4),
    "sft_8b": ("Llama-3.1-8B", 1),
}
MACHINE = Machine(Hardware(KINDS["H100-80"], 8))
KEYS = [
    "fits",
    "phases",
    "step_seconds",
    "step_seconds_band",
    "basis",
    "operators",
    "gpu_hours",
    "placement",
    "layouts",
    "assumptions",
    "planning_seconds",
    "why_not",
    "remedy",
]
PHASE_KEYS = [
    "name",
    "device_bytes",
    "host_bytes",
    "limit_bytes",
    "terms",
    "host_limit_bytes",
    "fits",
    "rank",
    "of",
]


@cache
def ppo_70b(nodes):
    """The plan of a shipped run; on 4 nodes it does not fit."""
    return planner().on(nodes)


def planner(name="ppo_70b", *words, model=None, machine=MACHINE, **options):
    config = load_config(ROOT / f"configs/run/{name}.yaml", words)
    arch = read_architecture(SIZES / f"{model or SHIPPED[name][0]}.json")
    return Planner(config, dict.fromkeys(config.role_settings, arch), machine, **options)


@pytest.mark.parametrize("name", [path.stem for path in sorted(SIZES.glob("*.json"))])
def test_the_sizes_that_are_shipped_are_those_that_were_published(name):
    arch = read_architecture(SIZES / f"{name}.json")
    published = PUBLISHED.get(name.removesuffix("-Instruct"))
    if published is None:
        # As their publishers count them.
        counts = {
            "Qwen2.5-32B-Instruct": 32.76e9,
            "Qwen3-4B": 4.022e9,
            "Qwen3-32B": 32.76e9,
            "Qwen3-235B-A22B": 235.09e9,
            "Qwen2.5-VL-7B-Instruct": 8.29e9,
        }
        assert arch.num_parameters == pytest.approx(counts[name], rel=1e-3)
    else:
        assert arch.num_parameters == published[1]
        assert arch.tensors() == architecture_from(published[0]).tensors()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_run_is_planned_from_config_json_alone(name):
    plan = planner(name).on(SHIPPED[name][1])
    assert plan.fits and plan.remedy is None and plan.why_not() is None
    assert "bound by launches" not in as_text(plan)
    config = plan.config
    assert plan.gpu_hours == pytest.approx(config.steps * plan.num_ranks * plan.step.seconds / 3600)
    assert 0 < plan.step.utilisation < 1


def test_it_says_what_is_bound_by_launches():
    small = planner("grpo_8b", "batch.max_tokens_per_micro_batch=1024").on(2)
    (line,) = [one for one in as_text(small).splitlines() if "launches" in one]
    assert re.fullmatch(r"bound by launches: in \w+ the host dispatches for \d+% of .*", line), line
    assert "launches" not in as_text(planner("grpo_8b").on(2))


@pytest.mark.parametrize(("nodes", "fits"), [(16, True), (4, False)])
def test_json_has_the_keys_that_it_should_and_sums_that_are_right(nodes, fits):
    told = json.loads(json.dumps(ppo_70b(nodes).as_json(), allow_nan=False))
    assert list(told) == KEYS
    assert told["fits"] is fits
    for phase in told["phases"]:
        assert list(phase) == PHASE_KEYS
        assert sum(phase["terms"].values()) == phase["device_bytes"]
        assert phase["limit_bytes"] == MACHINE.hardware.device_bytes
    names = [phase["name"] for phase in told["phases"]]
    assert names == ["build", "load", "reshard", "generate", "log_probs", "update", "save"]
    over = [p for p in told["phases"] if p["device_bytes"] > p["limit_bytes"]]
    assert bool(over) is not fits
    assert [phase for phase in told["phases"] if not phase["fits"]] == over
    assert (told["why_not"] is None) is fits and (told["remedy"] is None) is fits
    assert all(isfinite(seconds) for seconds in told["operators"].values())
    low, high = told["step_seconds_band"]
    assert low < told["step_seconds"] < high and "published steps" in told["basis"]
    ranks = {"actor": "0-127", "critic": "0-127", "reference": "0-127", "rollout": "0-127"}
    assert told["placement"] == (ranks if fits else dict.fromkeys(ranks, "0-31"))
    assert told["layouts"]["actor"] == {"tp": 8, "pp": 4, "dp": nodes // 4}
    assert told["layouts"]["rollout"] == {"ranks": 8, "engines": nodes}


def test_a_plan_is_the_ledger_and_the_time_model():
    plan = ppo_70b(16)
    config = plan.config
    arch = read_architecture(SIZES / "Llama-3.1-70B-Instruct.json")
    archs = dict.fromkeys(config.role_settings, arch)
    layouts = run_layouts(config, arch, 128, ranks_per_node=8)
    told = ledger(config, archs, layouts, MACHINE.hardware, counts_peers=True)
    assert plan.ledger.all_phases == told.all_phases
    step = predict_step(config, archs, layouts, MACHINE)
    assert plan.step.seconds == step.seconds
    assert plan.work == workload_of(config)


def test_what_does_not_fit_is_named_with_a_change_that_makes_it_fit():
    plan = ppo_70b(4)
    assert not plan.fits
    assert plan.why_not().startswith("log_probs (actor), rank 0: ")
    change = plan.remedy
    assert change.ledger.fits and change.num_ranks > plan.num_ranks
    assert str(change) == "8 nodes (64 ranks)"
    assert plan.assumptions[0].startswith("It does not fit")


def test_json_says_why_host_memory_is_too_small():
    machine = Machine(Hardware(KINDS["H100-80"], 8, host_bytes=200 * 2**30))
    plan = planner(machine=machine).on(16)
    told = plan.as_json()
    misfits = [phase for phase in told["phases"] if not phase["fits"]]
    assert misfits and not told["fits"]
    for phase in misfits:
        assert phase["device_bytes"] <= phase["limit_bytes"]
        assert phase["host_bytes"] > phase["host_limit_bytes"] == 25 * 2**30
        assert phase["rank"] in range(128)
    assert "GiB of host memory, which has 25.0" in told["why_not"]
    assert told["remedy"] == (None if plan.remedy is None else str(plan.remedy))


def test_a_change_on_the_same_ranks_is_preferred():
    plan = planner("grpo_8b", "batch.max_tokens_per_micro_batch=200000").on(2)
    assert not plan.fits
    assert plan.remedy.num_ranks == plan.num_ranks == 16
    assert "batch.max_tokens_per_micro_batch" in plan.remedy.settings


def test_the_fewest_nodes_on_which_it_fits():
    plan = planner().on_fewest()
    assert plan.fits and plan.num_nodes == 8
    assert ppo_70b(4).most_tried is plan.most_tried is None


def test_the_fewest_nodes_of_what_fits_on_none(monkeypatch):
    monkeypatch.setattr("verl_hpc.planner.plan.MOST_NODES", 2)
    plan = planner("grpo_8b", "batch.max_tokens_per_micro_batch=2000000").on_fewest()
    assert not plan.fits and plan.num_nodes == plan.most_tried == 2
    assert "no number of nodes that was tried, up to 2" in as_text(plan, False)


def test_the_best_number_of_nodes_by_time_and_by_hours():
    fastest = planner().on_best(16)
    cheapest = planner().on_best(16, "gpu_hours")
    assert fastest.num_nodes == 16
    for nodes in (8, 12, 16):
        other = ppo_70b(nodes)
        assert fastest.step.seconds <= other.step.seconds
        assert cheapest.step.gpu_hours <= other.step.gpu_hours
    assert cheapest.num_nodes < fastest.num_nodes


def test_of_numbers_of_nodes_on_which_nothing_fits_the_most_are_planned_for():
    plan = planner().on_best(4)
    assert not plan.fits and plan.num_nodes == 4


def test_a_number_of_nodes_that_cannot_be_laid_out():
    with pytest.raises(ConfigError, match="does not divide the 8 ranks"):
        planner().on(1)
    with pytest.raises(ConfigError, match="does not divide the 8 ranks"):
        planner().on_best(1)
    # The most that were allowed, not the least.
    with pytest.raises(ConfigError, match="does not divide the 24 ranks"):
        planner().on_best(3)


def test_a_search_beats_the_configuration_and_says_what_it_changes():
    plan = planner().search([16])
    assert plan.fits
    assert plan.step.seconds < ppo_70b(16).step.seconds
    record = plan.record("the command")
    assert set(record.names) == set(plan.found.overrides)
    assert record.why.startswith(f"{plan.step.text} a step by the time model")
    assert plan.step.seconds == pytest.approx(plan.found.candidate.seconds, rel=0.02)


def test_a_search_where_no_engine_can_start_asks_for_a_larger_share_alone():
    """A GPU a node has no tensor parallelism, so that a search has few layouts."""
    alone = Machine(Hardware(KINDS["H100-80"], 1))
    with pytest.raises(ConfigError, match="no engine can start. In one of TP1 x PP1") as refused:
        planner(machine=alone).search([64])
    assert str(refused.value).endswith(
        "; set rollout.pipeline_parallel above 1, so that its parts are smaller"
    )
    staged = "rollout.pipeline_parallel=2"
    with pytest.raises(ConfigError) as refused:
        planner("ppo_70b", staged, machine=alone).search([64])
    assert "smaller rollout" not in str(refused.value)
    told = re.search(r"gpu_memory_utilization to (0\.\d+) or more", str(refused.value))
    share = "rollout.gpu_memory_utilization="
    assert planner("ppo_70b", staged, share + told[1], machine=alone).search([64]).fits
    with pytest.raises(ConfigError, match="a smaller rollout.* with which an engine still starts"):
        planner("ppo_70b", staged, share + "0.95", machine=alone).search([64])


def test_a_run_by_epochs_has_no_hours():
    plan = planner("ppo_70b", "steps=null", "epochs=2").on(16)
    assert plan.gpu_hours is None
    assert plan.as_json()["gpu_hours"] is None


def test_what_is_assumed_is_said():
    plan = planner("grpo_8b", assumed=["A mean prompt has 9 tokens."]).on(2)
    assert plan.assumptions[0] == "A mean prompt has 9 tokens."
    assert any("lognormal" in line for line in plan.assumptions)
    assert any("CUDA graphs" in line for line in plan.assumptions)


def small(**changes):
    config = parse(**GAE, **changes)
    arch = architecture(num_layers=4, hidden_size=64, ffn_size=64, head_size=8, vocab_size=128)
    machine = Machine(Hardware(KINDS["cpu"], 4, host_bytes=2**36))
    return Planner(config, dict.fromkeys(config.role_settings, arch), machine)


def test_ranks_of_their_own():
    plan: Plan = small(placement={"actor": "0-1", "critic": "2", "rollout": "3"}).on(1)
    found = {"actor": "0-1", "critic": "2", "rollout": "3"}
    assert {name: placement_of(plan.layouts)[name] for name in found} == found


def test_fully_shard_is_planned_and_not_searched():
    words = "parallel.engine=fsdp", "parallel.tensor_parallel=1", "parallel.sequence_parallel=false"
    searched = planner("grpo_8b", *words)
    plan = searched.on(2)
    (update,) = (p for p in plan.ledger.phases if p.name == "update")
    held = sum(update.device[f"actor.{term}"] for term in ("weights", "moments"))
    # Float32 weights and two moments of every parameter, on 16 ranks; rows divide nearly evenly.
    arch = plan.ledger.shapes["actor"].arch
    assert held == pytest.approx(12 * arch.num_parameters / 16, rel=1e-3)
    assert any(text.startswith("parallel.engine = fsdp: seconds are") for text in plan.assumptions)
    with pytest.raises(ConfigError, match="fsdp, which always .* set it to megatron"):
        searched.search([2])
    searched._archs["actor"] = replace(arch, family="olmo2")
    with pytest.raises(ConfigError, match="nothing to choose; plan without --search"):
        searched.search([2])
