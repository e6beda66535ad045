"""Memory of devices and nodes, and what the planner gets of it."""

import pytest

from verl_hpc.hardware.node import GIB
from verl_hpc.runtime.device import Device
from verl_hpc.runtime.host_memory import _group_limits, most_bytes
from verl_hpc.runtime.preflight.devices import RankFacts, measured_of

H100 = "NVIDIA H100 80GB HBM3"


def ranks(*sizes, device=H100, per_node=2):
    """What ranks find on GPUs of these GiB; each node has 100 GiB more than the one before it."""
    return [
        rank(n // per_node, device, size * GIB, (1000 + 100 * (n // per_node)) * GIB)
        for n, size in enumerate(sizes)
    ]


def rank(node, model, device_bytes, host_bytes):
    device = Device(f"n{node}", model=model)
    return RankFacts(node, device, "torch 2.13.0", None, None, device_bytes, host_bytes)


PAIR, RING = {(0, 1): 90.0}, {(0, 1): 90.0, (1, 2): 80.0, (2, 0): 88.0}


FIGURES = [
    (2, ranks(79, 78, 79, 79), PAIR, (2, 2, H100, 78.0, 1000.0, 45.0)),
    (3, ranks(*[79] * 6), RING, (3, 2, H100, 79.0, 1000.0, 40.0)),
    (1, ranks(79, 79), {}, (1, 2, H100, 79.0, 1000.0, None)),
    (1, [rank(0, None, None, 16 * GIB)] * 4, {}, (1, 4, "cpu", None, 16.0, None)),
]


@pytest.mark.parametrize(
    ("num_nodes", "figures", "speeds", "expected"),
    FIGURES,
    ids=["the least of all", "the slowest pair", "one node", "cores"],
)
def test_what_the_planner_gets_is_the_least_of_all(num_nodes, figures, speeds, expected):
    """The network's figure is a rank's share of what the slowest pair of nodes measured."""
    got = measured_of("here", num_nodes, figures, speeds)
    assert (got.nodes, got.ranks_per_node, got.device) == expected[:3]
    assert (got.device_memory_gib, got.host_memory_gib, got.network_gb_s) == expected[3:]


A100 = ranks(39, 39, device="NVIDIA A100-SXM4-40GB")


def test_nodes_that_are_not_alike_are_not_told_as_one():
    """Nodes may differ in their devices, and in their numbers of ranks."""
    for figures in ([*ranks(79, 79), *A100], ranks(79, 79, 79)):
        assert measured_of("here", 2, figures, {}) is None


def test_the_least_limit_of_all_control_groups_counts(tmp_path):
    step = tmp_path / "slurm/job_7/step_0"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    (tmp_path / "slurm/job_7/memory.max").write_text("3000\n")
    (tmp_path / "slurm/memory.max").write_text("4000\n")
    assert list(_group_limits("0::/slurm/job_7/step_0\n", tmp_path)) == [3000, 4000]
    # Groups of the first version.
    job = tmp_path / "memory/slurm/job_7"
    job.mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text("5000\n")
    assert list(_group_limits("9:cpuset:/slurm/job_7\n8:memory:/slurm/job_7\n", tmp_path)) == [5000]


def test_this_machine_has_memory():
    assert GIB // 2 < most_bytes() < 2**50
