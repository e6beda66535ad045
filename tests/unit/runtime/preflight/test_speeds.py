"""Bus bandwidth, and which groups `comm` measures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from verl_hpc.cli.comm import _groups
from verl_hpc.errors import ConfigError
from verl_hpc.runtime.preflight.speeds import bus_gb_s


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("all-reduce", 1.5), ("all-gather", 0.75), ("broadcast", 1.0), ("point-to-point", 1.0)],
)
def test_bus_bandwidth_as_nccl_tests_has_it(operation: str, expected: float) -> None:
    assert bus_gb_s(operation, 2 * 10**9, 4, 2.0) == expected


def world(*node_of: int) -> SimpleNamespace:
    return SimpleNamespace(size=len(node_of), node_of=node_of, num_nodes=len(set(node_of)))


def test_groups_of_a_machine() -> None:
    assert _groups(None, world(0, 0, 1, 1)) == {
        "all ranks": [(0, 1, 2, 3)],
        "within a node": [(0, 1), (2, 3)],
        "across nodes": [(0, 2), (1, 3)],
    }


def test_one_node_and_uneven_ones_have_fewer() -> None:
    assert list(_groups(None, world(0, 0))) == ["all ranks"]
    assert list(_groups(None, world(0, 0, 1))) == ["all ranks"]


def test_groups_of_a_run() -> None:
    found = _groups(parse(parallel__tensor_parallel=2, rollout__tensor_parallel=2), world(*[0] * 8))
    assert found == {
        "all ranks": [(0, 1, 2, 3, 4, 5, 6, 7)],
        "actor, tensor parallel": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "actor, data parallel": [(0, 2, 4, 6), (1, 3, 5, 7)],
    }, "the rollout's groups are those of tensor parallelism, and measured once"


def test_one_rank_has_nobody_to_talk_to() -> None:
    with pytest.raises(ConfigError, match="nobody to talk to"):
        _groups(None, world(0))
