"""Transfers between real processes: what arrives, what is counted, what is refused."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
import torch.distributed as dist

from tests.mpi.engines_for_tests import memory
from tests.slow import mostly_slow
from verl_hpc.errors import TransferError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import DEFAULT_BUCKET_BYTES, plan_transfer
from verl_hpc.layout.report import message_census
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.transfer import exchange, process_memory, reads
from verl_hpc.transfer import memory as memory_room
from verl_hpc.transfer.checksum import Digest
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.process_memory import readable_neighbours

pytestmark = pytest.mark.world(4)

ARCH = Architecture("qwen2", 4, 48, 96, 12, 4, 4, 200, True, dtype="float32")


EACH = [(rank,) for rank in range(4)]


def logical(shard_map: ShardMap) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        n: torch.randn(s.shape, generator=generator).to(getattr(torch, s.dtype))
        for n, s in shard_map.tensors.items()
    }


class Case:
    """The weights of `ARCH` on their way from a training layout to rollout engines, on one rank."""

    def __init__(
        self, here, sizes, replicas, node_of=None, bucket_bytes=None, dtype="float32", **settings
    ):
        self.rank, self.dtype = here.world.rank, getattr(torch, dtype)
        self.source = megatron_shard_map(ARCH, TrainLayout(**sizes))
        self.target = vllm_shard_map(ARCH, replicas, dtype)
        nodes, bucket = node_of or here.world.node_of, bucket_bytes or DEFAULT_BUCKET_BYTES
        self.plan = plan_transfer(self.source, self.target, nodes, bucket)
        self.transfer = Transfer(self.plan, self.rank, **settings)
        self.have = memory(self.source, self.rank, logical(self.source))
        self.got = memory(self.target, self.rank)

    def run(self):
        """Move them into memory as it is now; what was counted."""
        return self.transfer.run(self.have, self.got, self.dtype)

    def run_again(self):
        """Move them into new memory."""
        self.got = memory(self.target, self.rank)
        return self.run()

    def run_but_for(self, rank, message):
        """Move them; on one rank alone that is an error."""
        fails = pytest.raises(TransferError, match=message) if self.rank == rank else nullcontext()
        with fails:
            self.run()

    def check(self, factor=1.0) -> None:
        """Hold what has arrived against the whole tensors times `factor`."""
        wanted = memory(self.target, self.rank, logical(self.target))
        for name, tensor in wanted.items():
            found = self.got[name] / factor
            torch.testing.assert_close(found, tensor, rtol=0, atol=0, equal_nan=True)


def sent_is_received(here, stats) -> None:
    """Every rank has received from each other what that one has sent to it."""
    pairs = here.control.allgather((dict(stats.sent_bytes), dict(stats.received_bytes)))
    assert all(pairs[a][0].get(b, 0) == pairs[b][1].get(a, 0) for a in range(4) for b in range(4))


@pytest.mark.parametrize("node_of", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 0, 1)])
@pytest.mark.parametrize(("bucket_bytes", "rounds"), [(4096, 2), (4096, 4), (1 << 22, 2)])
def test_relays_and_small_buckets_bring_the_same(here, node_of, bucket_bytes, rounds):
    case = Case(here, {"tp": 2, "pp": 2}, EACH, node_of, bucket_bytes, rounds=rounds)
    stats, plan = case.run(), case.plan
    case.check()
    assert stats.received_bytes.total() == plan.received_bytes[case.rank]
    sent_is_received(here, stats)
    assert sum(here.control.allgather(stats.messages)) == sum(message_census(plan).values())
    assert stats.peak_buffer_bytes <= 2 * rounds * max(message_census(plan)), "sent and received"
    inbound = sum(
        r.bundle.num_bytes
        for hop in plan.hops
        for r in hop
        if node_of[int(r.source)] != node_of[r.target]
    )
    assert inbound <= case.source.num_bytes * (len(set(node_of)) - 1 / 4)


READ = product(
    [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1)],
    [((2, 2, 1), 1), ((1, 2, 2), 2), ((4, 1, 1), 1), ((1, 1, 4), 2)],
    [96, 1 << 19],
)


@pytest.mark.parametrize(("node_of", "sizes", "piece_bytes"), mostly_slow(READ, every=3))
def test_neighbours_read_what_others_are_sent(here, monkeypatch, node_of, sizes, piece_bytes):
    """They get as many bytes as by messages, in pieces of a row or of many, relays included."""
    for room in (memory_room, reads):
        monkeypatch.setattr(room, "PIECE_BYTES", piece_bytes)
    training, rollout = dict(zip(("tp", "pp", "dp"), sizes[0], strict=True)), sizes[1]
    groups = [tuple(range(r, r + rollout)) for r in range(0, 4, rollout)]
    rank, near = here.world.rank, readable_neighbours(here.control, node_of)
    assert set(near) == {r for r in range(4) if node_of[r] == node_of[rank]} - {rank}
    case = Case(here, training, groups, node_of, 4096, neighbours=near)
    for _ in range(2):
        stats = case.run_again()
        case.check()
        assert stats.received_bytes.total() == case.plan.received_bytes.get(rank, 0)
    sent_is_received(here, stats)
    if set(node_of) == {0}:
        assert stats.messages == 0
        assert stats.peak_buffer_bytes <= max(piece_bytes, 4096), "one piece"


def test_memory_that_may_not_be_read_is_sent(here, monkeypatch):
    """On one rank alone: all of them go by messages then."""

    def refused(*_):
        raise PermissionError("no")

    if here.world.rank == 2:
        monkeypatch.setattr(process_memory, "read_memory", refused)
    assert readable_neighbours(here.control, (0, 0, 0, 0)) == {}
    assert readable_neighbours(here.control, (0, 1, 2, 1)) != {} or here.world.rank in (0, 2)


def test_memory_that_is_not_what_was_shown_is_not_trusted(here, monkeypatch):
    """A container has process numbers of its own."""
    if here.world.rank == 1:
        monkeypatch.setattr(process_memory.os, "getpid", lambda: 1 << 22)
    assert readable_neighbours(here.control, (0, 0, 0, 0)) == {}


@pytest.mark.parametrize("verify", [True, False])
def test_what_is_read_wrong_is_found_and_named(here, monkeypatch, verify):
    """A bit that flips on the way, where one rank reads."""
    near = readable_neighbours(here.control, (0, 0, 0, 0))
    case = Case(here, {"tp": 4}, EACH, verify=verify, nodes=["n0"] * 4, neighbours=near)
    read, calls = process_memory.read_memory, []

    def flipping(process, address, runs, to):
        read(process, address, runs, to)
        calls.append(to.view(-1).view(torch.uint8))
        if len(calls) == 3:
            calls[-1][5] ^= 4

    if case.rank == 3:
        monkeypatch.setattr(reads, "read_memory", flipping)
    message = r"rank 3: 1 of \d+ messages from rank \d .*=n0"
    case.run_but_for(3 if verify else None, message)
    if case.rank != 3:
        case.check()


@pytest.mark.parametrize("bucket_bytes", [4096, DEFAULT_BUCKET_BYTES])
def test_types_change_on_the_sending_side(here, bucket_bytes):
    """Also of what is a message alone, and what the sender itself keeps a copy of."""
    case = Case(here, {"tp": 4}, EACH, bucket_bytes=bucket_bytes, dtype="bfloat16")
    stats = case.run()
    case.check()
    assert stats.received_bytes.total() < case.source.num_bytes / 2


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


@pytest.fixture
def flips(here, monkeypatch):
    """`flips(rank, place, bit)`: a bit of the `place`-th message that a rank receives."""
    exchange = dist.batch_isend_irecv

    def install(rank, place, bit):
        arriving = []

        def corrupted(operations):
            requests = []
            for op, request in zip(operations, exchange(operations), strict=True):
                if op.op is dist.irecv and op.tensor.dtype == torch.uint8:
                    arriving.append(op)
                    is_it = here.world.rank == rank and len(arriving) == place + 1
                    request = Flipping(request, op.tensor, bit) if is_it else request
                requests.append(request)
            return requests

        monkeypatch.setattr(dist, "batch_isend_irecv", corrupted)

    yield install
    monkeypatch.undo()
    here.control.barrier()


class Flipping:
    def __init__(self, request, buffer, bit):
        self.request, self.buffer, self.bit = request, buffer, bit

    def wait(self):
        self.request.wait()
        self.buffer[self.bit // 8 % len(self.buffer)] ^= 1 << self.bit % 8


@pytest.mark.parametrize("bit", [0, 5, 12345])
def test_a_flipped_bit_on_the_way_is_found_and_named(here, flips, bit):
    case = Case(here, {}, [(3,)], nodes=["n0", "n0", "n1", "n1"])
    flips(3, 0, bit)
    message = r"rank 3: 1 of 1 messages from rank 0 .* and \d+ more; .*--exclude=n0,n1"
    case.run_but_for(3, message)


@pytest.mark.parametrize("place", [0, 3, 11])
def test_one_wrong_message_of_many_is_named_where_it_arrived(here, flips, place):
    """Also where others pass on what is wrong: they got what was sent to them."""
    case = Case(here, {"tp": 2, "pp": 2}, EACH, (0, 0, 1, 1), 4096)
    flips(2, place, 77)
    case.run_but_for(2, r"rank 2: 1 of \d+ messages from rank \d")


def test_what_lies_as_it_travels_is_not_copied_and_summed_once(here, monkeypatch):
    """Rows of a matrix, from one rank to three, and columns of it to one of them."""
    top, columns = Box((0, 0), (64, 32)), Box((0, 0), (64, 4))
    specs = dict.fromkeys(("rows", "columns"), TensorSpec((64, 32), "float32"))
    source = ShardMap(specs, [Region(n, top, (0,), View(n, 0, (32, 1))) for n in specs])
    regions = [
        Region("rows", top, (1, 2, 3), View("rows", 0, (32, 1))),
        Region("columns", columns, (3,), View("columns", 0, (4, 1))),
    ]
    target = ShardMap(specs, regions)
    plan = plan_transfer(source, target, here.world.node_of, 8192)
    rank = here.world.rank
    whole = {n: torch.randn(64, 32) for n in ("rows", "columns")} if rank == 0 else {}
    got = {"rows": torch.zeros(64 * 32)} if rank else {}
    if rank == 3:
        got["columns"] = torch.zeros(64 * 4)
    summed = []

    class Counting(Digest):
        def add(self, piece):
            summed.append(piece.nbytes)
            super().add(piece)

    monkeypatch.setattr(exchange, "Digest", Counting)
    transfer = Transfer(plan, rank)
    stats = transfer.run(whole, got, torch.float32)
    expected = here.control.broadcast(whole)
    assert all(
        torch.equal(tensor.view(64, -1), expected[name][:, : tensor.numel() // 64])
        for name, tensor in got.items()
    )
    # Columns are a message of 1 KiB: below a quarter of a bucket, but alone, and contiguous where
    # they arrive.
    in_place = {0: 3 * 8192, 1: 8192, 2: 8192, 3: 8192 + 1024}
    assert stats.in_place_bytes == in_place[rank]
    assert stats.peak_buffer_bytes == (1024 if rank == 0 else 0)
    assert summed == {0: [8192, 1024], 3: [8192, 1024]}.get(rank, [8192])
    buckets = transfer._buckets.num_bytes
    assert transfer.run(whole, got, torch.float32).peak_buffer_bytes == buckets


def test_without_verification_nothing_is_checked_and_as_much_is_moved(here):
    moved = []
    for verify in (True, False):
        case = Case(here, {"tp": 4}, [(0, 2), (1, 3)], verify=verify)
        moved.append(case.run().received_bytes.total())
        case.check()
    assert moved[0] == moved[1] > 0


def test_a_transfer_follows_its_tensors(here):
    """Runs again into the same memory with other values, then into other memory."""
    case = Case(here, {"tp": 2, "pp": 2}, EACH, bucket_bytes=4096)
    case.run()
    bound = case.transfer._bound
    for tensor in case.have.values():
        tensor.mul_(2)
    case.run()
    assert case.transfer._bound is bound
    case.check(2)
    for tensor in [*case.have.values(), *case.got.values()]:  # as offloading does
        kept, storage = tensor.clone(), tensor.untyped_storage()
        num_bytes = storage.nbytes()
        storage.resize_(0)
        storage.resize_(num_bytes)
        tensor.copy_(kept)
    case.run()
    case.check(2)
    case.run_again()
    assert case.transfer._bound is not bound
    case.check(2)
