"""Memory of devices and nodes, and what the planner is told of them."""

import pytest

from verl_hpc.hardware.node import GIB
from verl_hpc.runtime.host_memory import _group_limits, most_bytes
from verl_hpc.runtime.preflight.figures import Figures, judge_memory, measured_of

H100 = "NVIDIA H100 80GB HBM3"


def ranks(*sizes, device=H100, per_node=2):
    """Of GPUs of these GiB; the node of each has 100 GiB more than the one before it."""
    return [
        Figures(n // per_node, device, size * GIB, (1000 + 100 * (n // per_node)) * GIB)
        for n, size in enumerate(sizes)
    ]


def test_the_least_of_all_ranks_and_nodes_is_told():
    found = measured_of("here", 2, ranks(79, 78, 79, 79), {(0, 1): 90.0})
    assert (found.nodes, found.ranks_per_node, found.device) == (2, 2, H100)
    assert (found.device_memory_gib, found.host_memory_gib) == (78.0, 1000.0)
    assert found.network_gb_s == 45.0, "a rank's share of what a node brings"


def test_the_slowest_pair_is_the_network():
    found = measured_of("here", 3, ranks(*[79] * 6), {(0, 1): 90.0, (1, 2): 80.0, (2, 0): 88.0})
    assert found.network_gb_s == 40.0


def test_one_node_tells_nothing_of_the_network():
    assert measured_of("here", 1, ranks(79, 79), {}).network_gb_s is None


def test_cores():
    found = measured_of("here", 1, [Figures(0, "cpu", None, 16 * GIB)] * 4, {})
    assert (found.device, found.device_memory_gib, found.host_memory_gib) == ("cpu", None, 16.0)


@pytest.mark.parametrize(
    "found",
    [
        [*ranks(79, 79), *ranks(39, 39, device="NVIDIA A100-SXM4-40GB")],
        ranks(79, 79, 79, per_node=2),
    ],
    ids=["devices", "ranks"],
)
def test_nodes_that_are_not_alike_are_not_told_as_one(found):
    assert measured_of("here", 2, found, {}) is None


def test_the_verdict_on_memory():
    verdict = judge_memory(ranks(79, 78))
    assert (verdict.state, verdict.found) == (
        "ok",
        f"1000.0 GiB a node, 78.00 to 79.00 GiB a GPU: {H100}",
    )
    mixed = judge_memory([*ranks(79), *ranks(39, device="NVIDIA A100-SXM4-40GB")])
    assert mixed.state == "unknown" and mixed.todo


def test_the_least_limit_of_all_control_groups_counts(tmp_path):
    step = tmp_path / "slurm/job_7/step_0"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    (tmp_path / "slurm/job_7/memory.max").write_text("3000\n")
    (tmp_path / "slurm/memory.max").write_text("4000\n")
    assert list(_group_limits("0::/slurm/job_7/step_0\n", tmp_path)) == [3000, 4000]


def test_limits_of_control_groups_of_the_first_version(tmp_path):
    job = tmp_path / "memory/slurm/job_7"
    job.mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text("5000\n")
    groups = "9:cpuset:/slurm/job_7\n8:memory:/slurm/job_7\n"
    assert list(_group_limits(groups, tmp_path)) == [5000]


def test_this_machine_has_memory():
    assert GIB // 2 < most_bytes() < 2**50
