"""How many operations the host dispatches for a layer of a micro-batch, which bounds small ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from tests.dry_gpu.device import Gpu
from tests.dry_gpu.one_rank import OneRank, loss, one_rank, sequences_of
from tests.dry_gpu.test_experts import MIXTURE, TP2EP4, TP8EP32, route_evenly
from tests.dry_gpu.test_training import TP2
from verl_hpc.planner.timing.launches import OUTSIDE, PER_LAYER, Passage

TOKENS = 1024
Counts = dict[str, Counter[str]]
"""Operations and views, by pass."""


def check(
    start: Callable[..., Gpu],
    passage: Passage,
    views: Mapping[str, int],
    file: str,
    rank: int,
    size: int,
    parallel: Mapping[str, Any],
    *,
    tokens: int = TOKENS,
    first: int = 1,
    **changes: Any,
) -> Counts:
    """A layer of a micro-batch has as many operations as the planner counts, and as many views as
    is said. Return what a micro-batch has besides.

    Args:
        start: the fixture `gpu`.
        passage: operations by the planner.
        views: dispatches that launch nothing, by pass.
        file: sizes of a model, as `one_rank` takes it and what follows.
        tokens: of a micro-batch.
        first: layers of the smaller model; what one more adds is counted.
        changes: as `one_rank` takes them.
    """
    devices: list[Gpu] = []

    def once(*args: Any) -> Gpu:
        devices[:] = devices or [start(*args)]
        return devices[0]

    counts: dict[tuple[int, int], Counts] = {}
    for layers in (first, first + 1):
        one = one_rank(
            once, file, rank, size, parallel, layers=layers, max_tokens=tokens, **changes
        )
        one.engine.update(micro_batches(one, tokens, 1), loss)  # what happens once
        for rows in (1, 2):
            counts[layers, rows] = counted(one, tokens, rows)
    outside: Counts = {}
    for name, sent in (("forward", passage.forward), ("update", passage.update)):
        of_row = {n: less(counts[n, 2][name], counts[n, 1][name]) for n in (first, first + 1)}
        of_layer = less(of_row[first + 1], of_row[first])
        assert of_layer == {"sent": sent, "views": views[name]}, name
        outside[name] = less(of_row[first], of_layer)
    return outside


def less(one: Counter[str], other: Counter[str]) -> Counter[str]:
    return Counter({kind: one[kind] - other[kind] for kind in one})


def micro_batches(one: OneRank, tokens: int, rows: int) -> list[Tensor]:
    return sequences_of(one, [tokens // 4] * 4 * rows)


def counted(one: OneRank, tokens: int, rows: int) -> Counts:
    """Operations and views of both passes over so many full micro-batches."""
    sequences = micro_batches(one, tokens, rows)
    passes = {
        "forward": lambda: one.engine.infer(sequences),
        "update": lambda: one.engine.update(sequences, loss),
    }
    counts = {}
    for name, run in passes.items():
        one.gpu.clear()
        run()
        seen = one.gpu.operations
        counts[name] = Counter(sent=seen.sent.total(), views=seen.views.total())
    return counts


def test_dense_model(gpu):
    views = {"forward": 20, "update": 67}
    outside = check(gpu, PER_LAYER["dense"], views, "Qwen3-8B", 5, 16, TP2, tokens=4096)
    assert (outside["forward"]["sent"], outside["update"]["sent"]) == OUTSIDE


@pytest.mark.slow
def test_fp8(gpu):
    model = {"fp8": {"recipe": "blockwise"}}
    views = {"forward": 22, "update": 71}
    check(gpu, PER_LAYER["fp8"], views, "Qwen3-8B", 0, 4, TP2, model=model)


def test_mixture(gpu, monkeypatch):
    route_evenly(monkeypatch)
    views = {"forward": 43, "update": 233}
    check(gpu, PER_LAYER["experts"], views, MIXTURE, 5, 16, TP2EP4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "file"), [("shared experts", "GLM-4.5-Air"), ("latent attention", "DeepSeek-V3")]
)
def test_mixture_behind_a_dense_layer(gpu, monkeypatch, row, file):
    route_evenly(monkeypatch)
    views = {
        "shared experts": {"forward": 38, "update": 119},
        "latent attention": {"forward": 68, "update": 206},
    }[row]
    fields = {"first_k_dense_replace": 1}
    check(gpu, PER_LAYER[row], views, file, 5, 64, TP8EP32, first=2, fields=fields)


@pytest.mark.slow
def test_adapters(gpu):
    roles = {"actor": {"lora": {"rank": 16}}}
    views = {"forward": 44, "update": 147}
    check(gpu, PER_LAYER["adapters"], views, "Qwen3-8B", 1, 4, TP2, roles=roles)


@pytest.mark.slow
def test_context_parallelism(gpu):
    views = {"forward": 44, "update": 148}
    parallel = {**TP2, "context_parallel": 4}
    check(gpu, PER_LAYER["context parallelism"], views, "Qwen3-8B", 0, 16, parallel)


@pytest.mark.slow
def test_fully_sharded(gpu):
    views = {"forward": 63, "update": 183}
    check(gpu, PER_LAYER["fsdp"], views, "Qwen3-8B", 5, 8, {"engine": "fsdp"})
