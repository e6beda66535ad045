"""Rings: what they carry, and over which links."""

import pytest

from verl_hpc.hardware.node import KINDS, Hardware, LinkFigures
from verl_hpc.planner.timing.collectives import Fabric

H100 = Fabric(Hardware(KINDS["H100-80"], 8, LinkFigures(network_gb_s=45)))
CPUS = Fabric(Hardware(KINDS["cpu"], 8))
COSTS = {
    "one rank reduces with nobody": (H100.all_reduce(1e9, 1), {}),
    "one rank exchanges with nobody": (H100.all_to_all(1e9, 1), {}),
    "a ring in a node": (H100.all_reduce(8e9, 8), {"collective": 14 / 450, "hops": 6}),
    "half of it": (H100.all_gather(8e9, 8), {"collective": 7 / 450, "hops": 3}),
    "one rank a node": (H100.all_gather(1e9, 4, 8), {"collective": 3 / 4 / 45, "hops": 8}),
    "two ranks a node": (H100.all_gather(1e9, 8, 4), {"collective": 7 / 8 / 90, "hops": 9}),
    "a message to a node": (H100.send(45e9, 8), {"collective": 1.0, "hops": 4}),
    "a message in a node": (H100.send(45e9, 1), {"collective": 0.1, "hops": 1}),
    "a scatter is a gather": (H100.reduce_scatter(1e6, 4), H100.all_gather(1e6, 4)),
    # Of 10 GB/s: 0.75 GB of others, read and written.
    "cores of a node read": (CPUS.all_gather(1e9, 4, 2), {"memory": 0.15, "hops": 6}),
    "and add up": (CPUS.reduce_scatter(1e9, 4, 2), {"memory": 0.15, "hops": 6}),
    "alone they read nothing": (CPUS.reduce_scatter(1e9, 1), {}),
    "Gloo sums wholly": (CPUS.reduce_scatter(1e9, 4, 8), CPUS.all_reduce(1e9, 4, 8)),
}


def test_costs():
    for name, (cost, expected) in COSTS.items():
        assert cost == pytest.approx(expected), name


def test_links():
    assert not H100.crosses_nodes(8) and H100.crosses_nodes(16)
    assert not H100.crosses_nodes(2, 4) and H100.crosses_nodes(2, 8)
    assert "memory" not in CPUS.all_gather(1e9, 4, stride=8)
    assert Fabric(Hardware(KINDS["L40S"], 4)).bandwidth(4) == 32e9, "without NVLink over PCIe"


def test_gloo_has_rings():
    """All-reduces of small buffers take 0.26 ms on two CPU ranks and 1.1 ms on four."""
    assert [CPUS.all_reduce(1e6, n)["hops"] for n in (2, 4, 8)] == [2, 6, 14]


def test_engines_have_sums_of_their_own():
    for fabric in (CPUS, H100):
        assert fabric.sum_in_engine(1e6, 4)["decode_hops"] == 4
        assert "hops" not in fabric.sum_in_engine(1e6, 4)
        assert fabric.sum_in_engine(1e6, 1) == {}
