"""A rank's forward passes and updates, with Transformer Engine's layers on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pytest
import torch

from tests.dry_gpu.device import Gpu
from tests.dry_gpu.one_rank import COUNTED, OneRank, loss, one_rank, sequences_of, tell_stages
from tests.dry_gpu.world import Group
from verl_hpc.planner.memory.overheads import groups_of

TP2 = {"tensor_parallel": 2, "sequence_parallel": True}
TP8PP4 = {"tensor_parallel": 8, "pipeline_parallel": 4, "sequence_parallel": True}
LARGE = "Llama-3.1-70B-Instruct"
FULL = [1024] * 8
"""Sequences that fill two micro-batches of 4,096 tokens."""
UNLIKE = [4000, 2000, 64, 30, 1500, 300, 100, 90]
"""Sequences of which PyTorch's attention makes several rectangles in a micro-batch."""
ALLOWED = {
    "tolist: outputs._read_sums": 1,
    "item: clip_grads.get_grad_norm_fp32 in optimizer.step": 1,
}
"""The host waits for the device so often in an update, and nowhere else."""


ONCE = ["copy from the host: utils._empty_tensor in passes._forward"]
"""Transformer Engine keeps an empty tensor."""


Waits = Mapping[str, int]
NONE: Waits = MappingProxyType({})


def step(one: OneRank, lengths, forward: Waits = NONE, update: Waits = NONE, allowed=None) -> None:
    """An update, a forward pass and another update. In the latter two the host waits as often as
    is allowed, and no more bytes are taken than `plan` says. NCCL opens the communicators that the
    ledger counts.

    Args:
        one: the rank.
        lengths: of sequences.
        forward: waits of a forward pass.
        update: waits of an update besides those and `allowed`.
        allowed: waits of every update; ALLOWED if None.
    """
    gpu, engine = one.gpu, one.engine
    sequences = sequences_of(one, lengths)
    engine.update(sequences, loss)
    used = set(gpu.world.used)
    gpu.clear()
    outputs = engine.infer(sequences)
    assert waits_of(gpu) == forward
    planned = one.planned("log_probs")
    COUNTED["most in a forward pass"] = gpu.memory.peak, planned
    assert gpu.memory.peak <= 1.1 * planned, f"log_probs: {gpu.memory.peak:,} of {planned:,}"
    name = "values" if one.role == "critic" else "log_probs"
    for tokens, output in zip(sequences, outputs, strict=True):
        read = getattr(output, name)
        assert read.is_cuda and read.dtype == torch.float32 and len(read) == len(tokens) - 1
    gpu.clear()
    metrics = engine.update(sequences, loss)
    assert metrics.keys() >= {"loss", "something", "grad_norm"}, metrics
    assert waits_of(gpu) == {**(allowed or ALLOWED), **forward, **update}
    used |= set(gpu.world.used)
    check_communicators(one, used)


def check_communicators(one: OneRank, used: Iterable[Group]) -> None:
    """The groups that passed tensors of the device are those that the ledger counts."""
    assert {group.backend for group in used} <= {"nccl"}, used
    sums = one.arch.tied_embeddings and one.role == "actor" and one.settings.lora is None
    counted = groups_of(one.layout, one.gpu.rank, sums)
    planned = {tuple(first + i * step for i in range(size)) for first, step, size in counted}
    assert {group.ranks for group in used} == planned


def waits_of(gpu: Gpu) -> dict[str, int]:
    """How often the host has waited, without what happens once a process."""
    return {what: times for what, times in gpu.waits.items() if what not in ONCE}


def within(counted: int, planned: int, share: float, what: str = "") -> None:
    """What was counted is what the ledger says, but for a share of it."""
    if what:
        COUNTED[what] = counted, planned
    assert abs(counted - planned) <= share * planned, (what, counted / 1e9, planned / 1e9)


def check_memory(one: OneRank) -> None:
    """The bytes after a step are those of `plan`: at most, and of each part that is offloaded.

    Of a forward pass the share is small: a row of logits too few is seen.
    """
    within(*COUNTED["most in a forward pass"], 0.06)
    within(one.gpu.memory.peak, one.planned("update"), 0.10, "most in an update")
    check_parts(one)


def check_parts(one: OneRank) -> None:
    """Each part that is offloaded leaves the device, has as many bytes as `plan` says, and comes
    back. FP8 copies of weights leave with them, and are made anew by the next pass."""
    gpu, engine = one.gpu, one.engine
    terms = {
        "gradients": ["gradients"],
        "optimizer": ["masters", "moments"],
        "parameters": ["weights"],
    }
    before, copies = gpu.memory.live, one.planned("update", "fp8")
    for part, names in terms.items():
        live = gpu.memory.live
        freed = engine.offload(part)
        too = copies if part == "parameters" else 0
        within(live - gpu.memory.live, freed + too, 0.001)
        within(freed, one.planned("update", *names), 0.01, part)
    for part in reversed(terms):
        engine.onload(part)
    within(gpu.memory.live, before - copies, 0.001)


def test_dense_model(gpu):
    one = one_rank(gpu, "Qwen3-8B", 5, 16, TP2)
    within(one.gpu.memory.live, one.planned("update", "weights", "gradients", "masters"), 0.01)
    step(one, FULL)
    check_bytes(one)
    check_memory(one)


def check_bytes(one: OneRank) -> None:
    """Collectives of an update of FULL read and write as many bytes as its arithmetic says: the
    whole, and this rank's part of it."""
    layout, hidden, layers = one.layout, one.arch.hidden_size, one.arch.num_layers
    tokens = sum(FULL)
    # Before attention and MLP of every layer, and before the output layer.
    gathers = 2 * layers + 1
    elements = sum(weight.numel() for weight in one.engine.weights.values())
    norms = layers * (2 * hidden + 2 * one.arch.head_size) + hidden
    assert one.gpu.world.bytes == {
        # Backward passes gather inputs again for gradients of weights, and gradients of outputs.
        "allgather_base": 3 * gathers * with_parts(tokens * hidden * 2, layout.tp),
        "reduce_scatter_base": 2 * gathers * with_parts(tokens * hidden * 2, layout.tp),
        "reduce_scatter_tensor_coalesced": with_parts(elements * 4, layout.dp),
        "allgather_into_tensor_coalesced": with_parts(elements * 2, layout.dp),
        # Norms' gradients, four numbers of each token's log-prob, the norm of the gradient.
        "allreduce": 4 * (norms + 4 * tokens + 1),
    }


def with_parts(size: int, num_ranks: int) -> int:
    return size + size // num_ranks


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2, 7])
def test_stages_that_hold_tied_embeddings(gpu, monkeypatch, rank):
    parallel = {**TP2, "pipeline_parallel": 4}
    one = one_rank(gpu, "Qwen3-4B", rank, 8, parallel, layers=8)
    tell_stages(monkeypatch)
    only_last = {"tolist: outputs._read_sums"}
    waits = {what: n for what, n in ALLOWED.items() if rank == 7 or what not in only_last}
    step(one, [1024, 900, 1000, 1024, 2048, 1000, 1024, 700], allowed=waits)


def test_last_stage_of_a_large_model(gpu, monkeypatch):
    # As long as the run's longest sequence, so that a pipeline's rows are full, too.
    one = one_rank(gpu, LARGE, 127, 128, TP8PP4, layers=4, max_tokens=1536)
    tell_stages(monkeypatch)
    step(one, [1536] * 8)
    check_memory(one)


@pytest.mark.slow
def test_virtual_stages(gpu, monkeypatch):
    parallel = {**TP8PP4, "virtual_pipeline": 2}
    one = one_rank(gpu, LARGE, 127, 128, parallel, layers=8, max_tokens=1536)
    tell_stages(monkeypatch)
    step(one, [1536] * 8)
    check_memory(one)


def test_value_head(gpu):
    one = one_rank(gpu, "Qwen3-8B", 0, 4, TP2, role="critic")
    step(one, FULL)
    check_memory(one)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 16])  # Adam's step takes the most, and the passes do
def test_moments_in_bfloat16(gpu, num_ranks):
    optimizer = {"lr": 1e-6, "moments": "bfloat16"}
    one = one_rank(gpu, "Qwen3-8B", 1, num_ranks, TP2, optimizer=optimizer)
    step(one, FULL)
    check_memory(one)
    assert (one.planned("update", "widened") > 0) is (num_ranks == 2)
    types = {n.partition("/")[0]: t.dtype for n, t in one.engine.optimizer_tensors().items()}
    half = torch.bfloat16
    assert types == {"main": torch.float32, "exp_avg": half, "exp_avg_sq": half}


@pytest.mark.slow
def test_fp8(gpu):
    one = one_rank(gpu, "Qwen3-8B", 0, 4, TP2, model={"fp8": {"recipe": "blockwise"}})
    step(one, FULL)
    check_memory(one)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 6])
def test_context_parallel(gpu, rank):
    parallel = {**TP2, "context_parallel": 4}
    one = one_rank(gpu, "Qwen3-8B", rank, 16, parallel)
    step(one, [4096] * 4 + [1000] * 4)
    check_memory(one)


def test_adapters(gpu):
    one = one_rank(gpu, "Qwen3-8B", 1, 4, TP2, roles={"actor": {"lora": {"rank": 16}}})
    step(one, FULL)
    check_memory(one)


@pytest.mark.slow
def test_activations_on_the_host(gpu):
    parallel = {**TP2, "recompute": "full"}
    one = one_rank(gpu, "Qwen3-8B", 1, 4, parallel, layers=4)
    live, locked = kept(one)
    device = one.gpu
    del one
    gc.collect()
    parallel["offload_activations"] = True
    one = one_rank(lambda *_: device, "Qwen3-8B", 1, 4, parallel, layers=4)
    step(one, FULL)
    check_memory(one)
    live_now, locked_now = kept(one)
    # Of each micro-batch the inputs of four layers, and of the norm behind them, in bfloat16.
    moved = (4 + 1) * (4096 // one.layout.tp) * one.arch.hidden_size * 2
    assert [before - now for before, now in zip(live, live_now, strict=True)] == [moved] * 2
    assert locked_now - locked == 2 * moved


def kept(one: OneRank) -> tuple[list[int], int]:
    """Bytes that live on the device between forward and backward pass, of each micro-batch of a
    second update, and the page-locked bytes that this update allocates."""
    sequences, live = sequences_of(one, FULL), []

    def seen(*args):
        live.append(one.gpu.memory.live)
        return loss(*args)

    one.engine.update(sequences, loss)
    before, locked = one.gpu.memory.live, one.gpu.page_locked
    one.engine.update(sequences, seen)
    return [size - before for size in live], one.gpu.page_locked - locked


@pytest.mark.slow
def test_recomputed_layers(gpu):
    one = one_rank(gpu, "Qwen3-8B", 1, 4, {**TP2, "recompute": "full"}, layers=4)
    step(one, FULL)
    check_memory(one)


def test_fully_sharded(gpu):
    one = one_rank(gpu, "Qwen3-8B", 5, 8, {"engine": "fsdp"})
    # Without FlashAttention sequences share their common tokens, whose number is read.
    forward = {"tolist: shared_prefixes.num_shared": 1}
    allowed = {"tolist: outputs._read_sums": 1, "item: optimizer.step": 1}
    for lengths in UNLIKE, [4096] * 2:  # attention keeps no scores, however long a sequence
        step(one, lengths, forward, allowed=allowed)
        # The ledger adds up gradients of the embedding and logits, which are not there together.
        counted, planned = COUNTED["most in a forward pass"]
        assert counted <= planned
        assert one.gpu.memory.peak <= one.planned("update")
    check_parts(one)


@pytest.mark.slow
def test_layers_of_pytorch(gpu):
    one = one_rank(gpu, "Qwen3-8B", 1, 4, TP2, model={"dtype": "float32"})
    step(one, UNLIKE, {"tolist: shared_prefixes.num_shared": 1})
    check_memory(one)
