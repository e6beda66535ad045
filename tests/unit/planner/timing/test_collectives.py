"""Rings: what they carry, and over which links."""

import pytest

from verl_hpc.hardware.node import KINDS, Hardware, LinkFigures
from verl_hpc.planner.timing.collectives import Fabric

FABRIC = Fabric(Hardware(KINDS["H100-80"], 8, LinkFigures(network_gb_s=45)))


def test_one_rank_reduces_with_nobody():
    assert FABRIC.all_reduce(1e9, 1) == {} == FABRIC.all_to_all(1e9, 1)


def test_a_ring_in_a_node():
    cost = FABRIC.all_reduce(8e9, 8)
    assert cost["collective"] == pytest.approx(2 * 7 / 8 * 8 / 450)
    assert cost["hops"] == 2 * 3
    assert FABRIC.all_gather(8e9, 8)["collective"] == pytest.approx(cost["collective"] / 2)


def test_a_ring_over_nodes_has_the_links_of_its_ranks_there():
    one_each = FABRIC.all_gather(1e9, 4, stride=8)
    two_each = FABRIC.all_gather(1e9, 8, stride=4)
    assert one_each["collective"] == pytest.approx(3 / 4 / 45)
    assert two_each["collective"] == pytest.approx(7 / 8 / 90)
    assert one_each["hops"] == 2 * 4
    assert two_each["hops"] == 1 + 2 * 4


def test_what_crosses_nodes():
    assert not FABRIC.crosses_nodes(8) and FABRIC.crosses_nodes(16)
    assert not FABRIC.crosses_nodes(2, 4) and FABRIC.crosses_nodes(2, 8)
    assert FABRIC.send(45e9, 8) == {"collective": pytest.approx(1.0), "hops": 4.0}
    assert FABRIC.send(45e9, 1)["collective"] == pytest.approx(0.1)


def test_gpus_without_nvlink_take_pcie():
    fabric = Fabric(Hardware(KINDS["L40S"], 4))
    assert fabric.bandwidth(4) == 32e9


def test_gloo_has_rings():
    """All-reduces of small buffers take 0.26 ms on two CPU ranks and 1.1 ms on four."""
    cpus = Fabric(Hardware(KINDS["cpu"], 8))
    assert [cpus.all_reduce(1e6, n)["hops"] for n in (2, 4, 8)] == [2, 6, 14]
    gpus = Fabric(Hardware(KINDS["H100-80"], 8))
    assert gpus.all_reduce(1e6, 8)["hops"] == 6
    assert gpus.reduce_scatter(1e6, 4) == gpus.all_gather(1e6, 4)


def test_data_parallel_cpu_ranks_of_a_node_read_and_others_send():
    cpus = Fabric(Hardware(KINDS["cpu"], 8))
    read = cpus.reduce_scatter(1e9, 4, stride=2)
    assert read == cpus.all_gather(1e9, 4, stride=2)
    # Of 10 GB/s: 0.75 GB of others, read and written.
    assert read == {"memory": pytest.approx(0.15), "hops": 6}
    assert cpus.reduce_scatter(1e9, 1) == {}
    # Gloo sums all of it on every rank.
    assert cpus.reduce_scatter(1e9, 4, stride=8) == cpus.all_reduce(1e9, 4, stride=8)
    assert "memory" not in cpus.all_gather(1e9, 4, stride=8)


def test_engines_have_sums_of_their_own():
    for kind in ("cpu", "H100-80"):
        fabric = Fabric(Hardware(KINDS[kind], 8))
        assert fabric.sum_in_engine(1e6, 4)["decode_hops"] == 4
        assert "hops" not in fabric.sum_in_engine(1e6, 4)
        assert fabric.sum_in_engine(1e6, 1) == {}
