"""Transfers between real processes: what arrives, what is counted, what is refused."""

import pytest
import torch
import torch.distributed as dist

from verl_hpc.errors import TransferError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import message_census
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.transfer import execute
from verl_hpc.transfer.execute import Transfer

pytestmark = pytest.mark.world(4)

ARCH = Architecture("qwen2", 4, 48, 96, 12, 4, 4, 200, True, dtype="float32")


def logical(shard_map: ShardMap) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        n: torch.randn(s.shape, generator=generator).to(getattr(torch, s.dtype))
        for n, s in shard_map.tensors.items()
    }


def memory(shard_map: ShardMap, rank: int, filled: bool) -> dict[str, torch.Tensor]:
    """One rank's tensors; filled as the map says, or with NaN."""
    values = logical(shard_map)
    regions = shard_map.held_by(rank)
    sizes: dict[str, int] = {}
    for r in regions:
        last = r.view.offset + sum(
            (n - 1) * s for n, s in zip(r.box.shape, r.view.strides, strict=True)
        )
        sizes[r.view.name] = max(sizes.get(r.view.name, 0), last + 1)
    kinds = {r.view.name: getattr(torch, shard_map.tensors[r.tensor].dtype) for r in regions}
    tensors = {n: torch.full((size,), float("nan")).to(kinds[n]) for n, size in sizes.items()}
    for r in regions if filled else ():
        window = tensors[r.view.name].as_strided(r.box.shape, r.view.strides, r.view.offset)
        window.copy_(values[r.tensor][r.box.slices])
    return tensors


def check(rank: int, target: ShardMap, got: dict[str, torch.Tensor]) -> None:
    for name, wanted in memory(target, rank, filled=True).items():
        torch.testing.assert_close(got[name], wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("node_of", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 0, 1)])
@pytest.mark.parametrize("bucket_bytes", [4096, 1 << 22])
def test_relays_and_small_buckets_bring_the_same(here, node_of, bucket_bytes):
    source = megatron_shard_map(ARCH, TrainLayout(tp=2, pp=2))
    target = vllm_shard_map(ARCH, [(r,) for r in range(4)])
    plan = plan_transfer(source, target, node_of, bucket_bytes)
    rank = here.world.rank
    got = memory(target, rank, filled=False)
    stats = Transfer(plan, rank).run(memory(source, rank, filled=True), got, torch.float32)
    check(rank, target, got)
    assert stats.total_received_bytes == plan.received_bytes[rank]
    pairs = here.control.allgather((dict(stats.sent_bytes), dict(stats.received_bytes)))
    for a in range(4):
        for b in range(4):
            assert pairs[a][0].get(b, 0) == pairs[b][1].get(a, 0), "sent is not received"
    assert sum(here.control.allgather(stats.messages)) == sum(message_census(plan).values())
    largest = max(message_census(plan))
    most_fragments = bucket_bytes // 4  # one checksum of 8 bytes each
    assert stats.peak_buffer_bytes <= 2 * (largest + 8 * (most_fragments + 1))
    held = source.num_bytes / 4
    inbound = sum(
        r.bundle.num_bytes
        for hop in plan.hops
        for r in hop
        if node_of[int(r.source)] != node_of[r.target]
    )
    assert inbound <= source.num_bytes * len(set(node_of)) - held


def test_disjoint_ranks(here):
    source = megatron_shard_map(ARCH, TrainLayout(tp=2))
    target = vllm_shard_map(ARCH, [(2, 3)])
    plan = plan_transfer(source, target, here.world.node_of, 8192)
    rank = here.world.rank
    got = memory(target, rank, filled=False)
    stats = Transfer(plan, rank).run(memory(source, rank, filled=True), got, torch.float32)
    check(rank, target, got)
    assert (stats.total_received_bytes > 0) == (rank in (2, 3))
    assert stats.copied_bytes == 0


def test_types_change_on_the_sending_side(here):
    source = megatron_shard_map(ARCH, TrainLayout(tp=4))
    target = vllm_shard_map(ARCH, [(r,) for r in range(4)], "bfloat16")
    plan = plan_transfer(source, target, here.world.node_of)
    rank = here.world.rank
    got = memory(target, rank, filled=False)
    stats = Transfer(plan, rank).run(memory(source, rank, filled=True), got, torch.bfloat16)
    halved = {n: t.to(torch.bfloat16) for n, t in logical(source).items()}
    for region in target.held_by(rank):
        local = got[region.view.name]
        window = local.as_strided(region.box.shape, region.view.strides, region.view.offset)
        assert torch.equal(window, halved[region.tensor][region.box.slices])
    assert stats.total_received_bytes < source.num_bytes / 2


def test_types_of_all_widths_share_a_message(here):
    """An odd number of bytes in front of wider elements must not shift them."""
    kinds = ["uint8", "bfloat16", "float32", "int64"]
    tensors = {kind: TensorSpec((7,), kind) for kind in kinds}
    box = Box((0,), (7,))
    source = ShardMap(tensors, [Region(k, box, (0,), View(k, 0, (1,))) for k in kinds])
    target = ShardMap(tensors, [Region(k, box, (1, 2), View(k, 0, (1,))) for k in kinds])
    plan = plan_transfer(source, target, here.world.node_of)
    rank = here.world.rank
    numbers = {k: torch.arange(7).to(getattr(torch, k)) for k in kinds}
    got = {k: torch.zeros_like(v) for k, v in numbers.items()}
    dtypes = {k: v.dtype for k, v in numbers.items()}
    Transfer(plan, rank).run(numbers if rank == 0 else {}, got if rank in (1, 2) else {}, dtypes)
    if rank in (1, 2):
        assert all(torch.equal(got[k], numbers[k]) for k in kinds)


@pytest.mark.parametrize("bit", [0, 5, 12345])
def test_a_flipped_bit_on_the_way_is_found_and_named(here, monkeypatch, bit):
    # One message in all: nobody waits for the rank that refuses it.
    source = megatron_shard_map(ARCH, TrainLayout())
    target = vllm_shard_map(ARCH, [(3,)])
    plan = plan_transfer(source, target, here.world.node_of)
    rank = here.world.rank
    exchange = dist.batch_isend_irecv

    class Flipping:
        def __init__(self, request, buffer):
            self.request, self.buffer = request, buffer

        def wait(self):
            self.request.wait()
            self.buffer[bit // 8] ^= 1 << bit % 8

    def corrupted(operations):
        requests = exchange(operations)
        return [
            Flipping(request, op.tensor) if op.op is dist.irecv and rank == 3 else request
            for op, request in zip(operations, requests, strict=True)
        ]

    monkeypatch.setattr(execute.dist, "batch_isend_irecv", corrupted)
    transfer = Transfer(plan, rank, nodes=["n0", "n0", "n1", "n1"])
    have, got = memory(source, rank, filled=True), memory(target, rank, filled=False)
    if rank == 3:
        with pytest.raises(
            TransferError, match=r"rank 3: 1 of \d+ fragments from rank 0 .*--exclude=n0,n1"
        ):
            transfer.run(have, got, torch.float32)
    else:
        transfer.run(have, got, torch.float32)
    monkeypatch.undo()
    here.control.barrier()


def test_without_verification_nothing_is_checked_and_as_much_is_moved(here):
    source = megatron_shard_map(ARCH, TrainLayout(tp=4))
    target = vllm_shard_map(ARCH, [(0, 2), (1, 3)])
    plan = plan_transfer(source, target, here.world.node_of)
    rank = here.world.rank
    moved = []
    for verify in (True, False):
        got = memory(target, rank, filled=False)
        stats = Transfer(plan, rank, verify=verify).run(
            memory(source, rank, filled=True), got, torch.float32
        )
        check(rank, target, got)
        moved.append(stats.total_received_bytes)
    assert moved[0] == moved[1] > 0
