"""Counting what a resharding costs, against plain arithmetic and HybridFlow's Table 2."""

import json
import subprocess
import sys

import pytest

from tests.slow import all_slow
from tests.unit.layout.models import LLAMA_31_405B, PUBLISHED, architecture
from tests.unit.layout.simulate import carry_out, elements_of
from verl_hpc.layout.generation import generation_groups
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import Spread, reshard_report
from verl_hpc.layout.vllm import vllm_shard_map


@pytest.mark.parametrize(
    "layout, rollout_tp, per_node",
    [
        (TrainLayout(tp=4, dp=2), 2, 4),
        (TrainLayout(tp=2, pp=2, dp=2), 2, 2),
        (TrainLayout(tp=2, dp=4), 4, 8),
        (TrainLayout(pp=2, dp=1), 1, 1),
    ],
    ids=str,
)
def test_every_figure_of_a_small_model(layout, rollout_tp, per_node):
    arch = architecture()
    report = reshard_report(arch, layout, rollout_tp, per_node)
    source = megatron_shard_map(arch, layout)
    grouping = "zero_redundancy" if layout.tp % rollout_tp == 0 else "contiguous"
    groups = generation_groups(layout.grid, rollout_tp, grouping)
    target = vllm_shard_map(arch, groups)
    nodes = nodes_of(layout.num_ranks, per_node)
    plan = plan_transfer(source, target, nodes)

    ranks = range(layout.num_ranks)
    _, received = carry_out(plan, source, target)
    assert report.received_bytes_per_rank == Spread.of(4 * received[r] for r in ranks)
    assert report.minimum_bytes_per_rank == report.received_bytes_per_rank
    assert report.minimum_inbound_bytes_per_node == report.inbound_bytes_per_node
    entering = plan.inbound_bytes(nodes)
    assert report.inbound_bytes_per_node == Spread.of(entering.get(n, 0) for n in set(nodes))

    assert report.model_bytes == 4 * arch.num_parameters
    held = [4 * sum(map(len, elements_of(source, r).values())) for r in ranks]
    assert report.allgather_bytes_per_rank == Spread.of(report.model_bytes - h for h in held)
    assert report.messages > 0
    assert 0 < report.peak_bucket_bytes <= sum(received.values()) * 4
    assert 0 < report.planning_seconds < 60


def test_the_papers_formula_is_met_where_nothing_is_replicated():
    """Table 2: (t p - t_g p_g) / (t_g p_g t p) M, but for norms, which all ranks hold."""
    arch = architecture(vocab_size=128, num_kv_heads=8)
    report = reshard_report(arch, TrainLayout(tp=8, dp=2), 2, 8)
    assert report.paper_bytes_per_rank == (8 - 2) / (2 * 8) * report.model_bytes
    norms = 4 * arch.hidden_size * (2 * arch.num_layers + 1)
    received = report.received_bytes_per_rank
    assert received.min == received.max == (8 - 2) / (2 * 8) * (report.model_bytes - norms)


def test_equal_sizes_move_nothing():
    report = reshard_report(architecture(vocab_size=64), TrainLayout(tp=2, dp=2), 2, 4)
    nothing = Spread(0, 0.0, 0)
    assert report.received_bytes_per_rank == report.inbound_bytes_per_node == nothing
    assert (report.messages, report.peak_bucket_bytes, report.paper_bytes_per_rank) == (0, 0, 0.0)
    assert report.limit_seconds == 0
    assert report.predicted_seconds < 1e-6


def test_the_paper_has_no_figure_for_another_grouping():
    layout = TrainLayout(tp=4, dp=2)
    contiguous = reshard_report(architecture(), layout, 2, 8, "contiguous")
    grouped = reshard_report(architecture(), layout, 2, 8)
    assert contiguous.paper_bytes_per_rank is None
    assert reshard_report(architecture(), layout, 8, 8).paper_bytes_per_rank is None
    assert contiguous.received_bytes_per_rank.mean > grouped.received_bytes_per_rank.mean


AT_SCALE = """
import json, sys
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.report import reshard_report

config = json.loads(sys.argv[1])
layout = TrainLayout(tp=8, pp=16, dp=int(sys.argv[2]))
report = reshard_report(architecture_from(config), layout, rollout_tp=8, gpus_per_node=8)
# Not getrusage: a process that another has started has that one's maximum, too.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
used = int(peak.split()[1]) * 1024
print(json.dumps({**report.as_json(), "resident_bytes": used}))
"""


@pytest.mark.parametrize("num_ranks", [256, *all_slow(4096)])
def test_llama_405b(num_ranks):
    """In a process of its own: the plan must fit a login node, which allows a gibibyte."""
    words = ["-c", AT_SCALE, json.dumps(LLAMA_31_405B), str(num_ranks // 128)]
    figures = json.loads(subprocess.check_output([sys.executable, *words]))
    assert figures["model_bytes"] == 2 * PUBLISHED["Llama-3.1-405B"][1] == 811_706_777_600
    assert figures["received_bytes_per_rank"] == figures["minimum_bytes_per_rank"]
    assert figures["inbound_bytes_per_node"] == figures["minimum_inbound_bytes_per_node"]
    assert figures["paper_bytes_per_rank"] == (8 * 16 - 8) / (8 * 8 * 16) * 811_706_777_600
    received = figures["received_bytes_per_rank"]["mean"]
    assert received == pytest.approx(figures["paper_bytes_per_rank"], rel=1e-3)
    # Gathering full tensors would receive the model but for the rank's own 128th part.
    assert figures["allgather_bytes_per_rank"]["mean"] > 8 * received
    assert 16 * 2**20 < figures["peak_bucket_bytes"] <= 32 * 2**20
    assert figures["planning_seconds"] < 60
    assert figures["resident_bytes"] < 2**30
