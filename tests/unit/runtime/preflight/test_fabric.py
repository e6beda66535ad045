"""Verdicts on the InfiniBand of nodes, and on what NCCL made of it."""

import pytest

from verl_hpc.runtime.fabric import Fabric
from verl_hpc.runtime.preflight.fabric import judge_fabric, judge_network

GOOD = Fabric(("mlx5_0", "mlx5_1"), ("mlx5_0", "mlx5_1"), ("mlx5_0", "mlx5_1"))
NO_DRIVER = Fabric(("mlx5_0",), ())


def test_nodes_that_can_use_it():
    verdict = judge_fabric({"n0": GOOD, "n1": GOOD})
    assert (verdict.state, verdict.found) == (
        "ok",
        "at least 2 adapters a node are up and can be opened",
    )


def test_a_driver_that_is_missing_everywhere_blames_the_image():
    verdict = judge_fabric({"n0": NO_DRIVER, "n1": NO_DRIVER})
    assert (verdict.state, verdict.nodes) == ("fails", ())
    assert "n0: mlx5_0 up, but libibverbs has no driver" in verdict.found
    assert verdict.todo == "see docs/containers.md"


@pytest.mark.parametrize("bad, words", [(NO_DRIVER, "no driver"), (Fabric(), "no adapter is up")])
def test_one_node_that_differs_is_blamed(bad, words):
    verdict = judge_fabric({"n0": GOOD, "n1": bad})
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert words in verdict.found


@pytest.mark.parametrize(
    "said, state, words",
    [
        ([("n0", "IB", "InfiniBand"), ("n1", "IB", "InfiniBand")], "ok", "uses IB between nodes"),
        ([("n0", "Socket", None), ("n1", "Socket", None)], "ok", "uses Socket"),
        (
            [("n0", "IB", "InfiniBand"), ("n1", "Socket", "InfiniBand")],
            "fails",
            "TCP beside InfiniBand: n1",
        ),
        ([("n0", "Socket", "Slingshot")], "fails", "TCP beside Slingshot: n0; bring the site's"),
        ([("n0", None, "InfiniBand"), ("n1", None, "InfiniBand")], "unknown", "has not said"),
    ],
)
def test_what_nccl_uses(said, state, words):
    verdict = judge_network(said)
    assert verdict.state == state
    assert words in str(verdict)
