"""Verdicts on the InfiniBand of nodes, and on what NCCL made of it."""

import pytest

from verl_hpc.runtime.fabric import Fabric
from verl_hpc.runtime.preflight.fabric import judge_fabric, judge_network

GOOD = Fabric(("mlx5_0", "mlx5_1"), ("mlx5_0", "mlx5_1"), ("mlx5_0", "mlx5_1"))
NO_DRIVER = Fabric(("mlx5_0",), ())


INFINIBAND = [
    (GOOD, GOOD, "ok", (), "at least 2 adapters a node are up and can be opened"),
    (NO_DRIVER, NO_DRIVER, "fails", (), "n0: mlx5_0 up, but libibverbs has no driver"),
    (NO_DRIVER, NO_DRIVER, "fails", (), "see docs/containers.md"),
    (GOOD, NO_DRIVER, "fails", ("n1",), "no driver"),
    (GOOD, Fabric(), "fails", ("n1",), "no adapter is up"),
]


@pytest.mark.parametrize(("first", "second", "state", "blamed", "words"), INFINIBAND)
def test_verdicts_on_infiniband(first, second, state, blamed, words):
    """A driver that is missing everywhere is the image's fault, and a node that differs its own."""
    verdict = judge_fabric({"n0": first, "n1": second})
    assert (verdict.state, verdict.nodes) == (state, blamed)
    assert words in f"{verdict.found} {verdict.todo}"


NETWORKS = [
    (("IB", "InfiniBand", "IB", "InfiniBand"), "ok", "uses IB between nodes"),
    (("Socket", None, "Socket", None), "ok", "uses Socket"),
    (("IB", "InfiniBand", "Socket", "InfiniBand"), "fails", "TCP beside InfiniBand: n1"),
    (("Socket", "Slingshot"), "fails", "TCP beside Slingshot: n0; bring the site's"),
    ((None, "InfiniBand", None, "InfiniBand"), "unknown", "has not said"),
]


@pytest.mark.parametrize("said, state, words", NETWORKS)
def test_what_nccl_uses(said, state, words):
    """What each node uses, and the network that it has."""
    verdict = judge_network(list(zip(("n0", "n1"), said[::2], said[1::2], strict=False)))
    assert verdict.state == state
    assert words in str(verdict)
