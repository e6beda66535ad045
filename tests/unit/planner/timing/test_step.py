"""A step as a whole: composed along the flow, overlapping on disjoint ranks, with staleness."""

from dataclasses import replace

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import PUBLISHED
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.link_model import predicted_seconds
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import reshard_report
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.timing.cost import CPU_RANKS
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.refit import Refit, estimated_seconds
from verl_hpc.planner.timing.schedule import PlacedFlow, classes_of
from verl_hpc.planner.timing.step import RESHARD, predict_step

L8 = architecture_from(PUBLISHED["Llama-3.1-8B"][0])
H100 = Machine(Hardware(KINDS["H100-80"], 8))
OFFLOAD = {"offload": {"parameters": True, "gradients": True, "optimizer": True}}


def predict(num_ranks=16, machine=H100, **changes):
    config = parse(batch__size=256, **changes)
    layouts = run_layouts(config, L8, num_ranks, ranks_per_node=8)
    return predict_step(config, L8, layouts, machine)


def test_on_the_same_ranks_operators_follow_each_other():
    step = predict(**GAE)
    assert step.seconds == pytest.approx(sum(step.operators.values()))
    ends = [span.stop for span in step.spans]
    assert step.spans[0].operator == RESHARD and ends == sorted(ends)
    for name, cost in step.costs.items():
        assert H100.seconds(cost) <= step.operators[name] + 1e-9


def test_on_disjoint_ranks_they_overlap():
    together = predict(**GAE)
    apart = predict(**GAE, placement={"actor": "0-7", "critic": "8-15"})
    assert apart.seconds < sum(apart.operators.values())
    spans = {span.operator: span for span in apart.spans}
    assert spans["update_actor"].start == pytest.approx(spans["update_critic"].start)
    # Half of the ranks each, and so the same work in all.
    assert apart.operators["update_critic"] > 1.5 * together.operators["update_critic"]


def test_with_staleness_the_next_rollout_is_made_meanwhile():
    halves = {"placement": {"rollout": "1/2", "train": "1/2"}}
    fresh, stale = predict(**halves), predict(**halves, rollout__staleness=1)
    made = sum(stale.operators[n] for n in ("rollout", "assign", "reward"))
    rest = sum(stale.operators.values()) - made - stale.operators[RESHARD]
    assert stale.seconds == pytest.approx(stale.operators[RESHARD] + max(made, rest))
    assert stale.seconds < fresh.seconds == pytest.approx(sum(fresh.operators.values()))


@pytest.mark.parametrize("moments, of_state", [("float32", 12), ("bfloat16", 8)])
def test_offloading_is_paid_by_the_reshard(moments, of_state):
    optimizer = {"optimizer": {"moments": moments}}
    kept, offloaded = predict(**optimizer), predict(**optimizer, **OFFLOAD)
    more = offloaded.operators[RESHARD] - kept.operators[RESHARD]
    # 16 GB of weights, and Adam's state of each parameter of a sixteenth, both ways.
    num_bytes = 2 * (2 * 8.03e9 + of_state * 8.03e9 / 16)
    assert more == pytest.approx(num_bytes / (64e9 * H100.efficiency.pcie), rel=0.01)


def test_the_reshard_merges_adapters_into_a_base_from_host_memory():
    adapters, whole = predict(lora={"rank": 8}), predict()
    assert not whole.costs[RESHARD]["pcie"]
    assert adapters.costs[RESHARD]["pcie"] == pytest.approx(2 * 8.03e9 / 64e9, rel=0.01)
    assert adapters.operators[RESHARD] > H100.seconds(adapters.costs[RESHARD])


def test_a_reference_in_the_actors_engine_comes_from_the_host():
    plain = predict(algorithm__kl={"placement": "loss"})
    own = predict(algorithm__kl={"placement": "loss"}, roles={"reference": {"path": "models/ref"}})
    assert plain.operators["ref_log_probs"] > own.operators["ref_log_probs"]


def test_figures_of_a_step():
    step = predict()
    assert step.tokens == 256 * 4 * (256 + 256)
    assert step.tokens_per_second == pytest.approx(step.tokens / step.seconds)
    assert step.gpu_hours == pytest.approx(16 * step.seconds / 3600)
    assert 0.0 < step.utilisation < H100.efficiency.training


def test_a_faster_machine_is_faster_in_everything_that_models_compute():
    slow, fast = predict(), predict(machine=Machine(Hardware(KINDS["B200"], 8)))
    for name in ("rollout", "update_actor"):
        assert fast.operators[name] < slow.operators[name]
    half = replace(H100.efficiency, training=H100.efficiency.training / 2)
    halved = predict(machine=Machine(H100.hardware, half))
    peak = slow.costs["update_actor"]["training"]
    more = halved.operators["update_actor"] - slow.operators["update_actor"]
    # What hides the reducing of gradients is longer, too.
    assert more == pytest.approx(peak / H100.efficiency.training, rel=0.2)


def test_other_recipes():
    sft = predict(recipe="sft", rollout__num_samples=1)
    assert set(sft.operators) == {"examples", "update_actor"}
    dpo = predict(recipe="dpo", rollout__num_samples=1)
    assert set(dpo.operators) == {"pairs", "ref_log_probs", "update_actor"}
    assert dpo.tokens == 2 * sft.tokens


def test_a_schedule_waits_for_what_it_needs():
    place = classes_of({"left": [0, 1], "right": [2], "both": [1, 2]})
    first, other = (place["left"], []), (place["right"], [])
    steps = [first, other, (place["both"], [0, 1]), (place["left"], [0])]
    assert PlacedFlow(steps, []).ends([1.0, 3.0, 2.0, 1.0], 10.0) == [11, 13, 15, 16]
    # What is made ahead delays nothing but itself.
    assert PlacedFlow(steps, [0, 1]).ends([1.0, 3.0, 2.0, 1.0], 10.0) == [11, 13, 12, 13]


LAYOUTS = [((2, 1, 8), 1), ((4, 2, 2), 2), ((8, 1, 2), 2), ((2, 2, 4), 4), ((8, 2, 1), 8)]


@pytest.mark.parametrize(("sizes", "rollout_tp"), LAYOUTS)
def test_bytes_of_a_refit_are_those_of_its_plan(sizes, rollout_tp):
    train = TrainLayout(*sizes)
    received = Refit(L8, train, rollout_tp, "bfloat16").received_bytes
    plan = reshard_report(L8, train, rollout_tp, 8).received_bytes_per_rank
    # Embedding and output layer are on the first and the last stage alone.
    assert received == pytest.approx(plan.mean, rel=0.12)


@pytest.mark.parametrize(("sizes", "rollout_tp"), LAYOUTS)
def test_an_estimate_is_near_the_simulated_plan(sizes, rollout_tp):
    train = TrainLayout(*sizes)
    grouping = "zero_redundancy" if zero_redundancy_applies(train.tp, rollout_tp) else "contiguous"
    groups = generation_groups(train.grid, rollout_tp, grouping)
    links = H100.hardware.links
    source, target = megatron_shard_map(L8, train), vllm_shard_map(L8, groups, "bfloat16")
    nodes = nodes_of(16, 8)
    planned = predicted_seconds(plan_transfer(source, target, nodes), nodes, links, True)
    refit = Refit(L8, train, rollout_tp, "bfloat16")
    estimated = estimated_seconds(refit, H100.hardware)
    assert planned / 3.5 - 0.01 < estimated < 2 * planned


def test_a_stage_of_an_engine_receives_its_own_layers():
    whole, half = (
        Refit(L8, TrainLayout(tp=8, pp=2), 2, "bfloat16", shared=False, num_stages=num_stages)
        for num_stages in (1, 2)
    )
    assert half.received_bytes == whole.received_bytes / 2
    assert half.needed_bytes == whole.needed_bytes / 2
    assert estimated_seconds(half, H100.hardware) < estimated_seconds(whole, H100.hardware)


def test_cpu_ranks_of_a_node_refit_over_no_network():
    cores = Machine(Hardware(KINDS["cpu"], 8), CPU_RANKS)
    one = predict(8, cores, **GAE)
    assert one.operators[RESHARD] == pytest.approx(cores.seconds(one.costs[RESHARD]))
    two = predict(16, cores, **GAE, parallel={"pipeline_parallel": 2})
    assert two.operators[RESHARD] > cores.seconds(two.costs[RESHARD]) + 0.05
