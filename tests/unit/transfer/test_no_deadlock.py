"""A refit completes in NCCL's order of sends and receives, and both ends of messages agree."""

import contextlib
from collections import defaultdict

import pytest
import torch

from tests.slow import all_slow, mostly_slow
from tests.unit import shipped
from tests.unit.layout.models import architecture, moe
from tests.unit.layout.simulate import local_sizes
from tests.unit.transfer.blocking import Launch, faults
from tests.unit.transfer.refits import programs, random_refit
from verl_hpc.errors import TransferError
from verl_hpc.layout import messages, moves
from verl_hpc.layout.generation import generation_groups
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.planner.refit_plan import refit_plans
from verl_hpc.transfer.execute import Transfer


@pytest.fixture(autouse=True)
def once(monkeypatch):
    """Every rank finds the order of all messages; find it once for all ranks."""

    def kept(work):
        known = {}

        def found(given, *more):
            if id(given) not in known:
                known[id(given)] = given, work(given, *more)
            return known[id(given)][1]

        return found

    for name in ("routes_by_pair", "schedule"):
        monkeypatch.setattr(moves, name, kept(getattr(messages, name)))


REFITS = [name for name in shipped.FILES if "sft" not in name]
SMALL = [name for name in REFITS if shipped.laid_out(name)[2].num_ranks <= 128]
"""On fewer ranks than the largest, which takes as long as all others."""


@pytest.mark.parametrize(
    "name, whole",
    [
        *((name, False) for name in SMALL),
        *all_slow(*((name, False) for name in REFITS if name not in SMALL)),
        *all_slow(*((name, True) for name in REFITS)),
    ],
)
def test_shipped_configurations(name, whole):
    config, arch, layouts, hardware = shipped.laid_out(name, whole)
    for plan in refit_plans(config, arch, layouts, hardware):
        assert faults(programs(plan, range(layouts.num_ranks))) == []


NUMBERS, OFTEN = range(200), 20
"""Seeds of random layouts; each push tries the first of every so many, of few ranks."""


@pytest.mark.parametrize("number", mostly_slow(NUMBERS, OFTEN))
def test_random_layouts(number):
    words, plan, num_ranks = random_refit(number, 48 if number % OFTEN == 0 else 512)
    assert faults(programs(plan, range(num_ranks))) == [], words


LAYOUT = TrainLayout(tp=2, pp=2, dp=2)


def small_plan(arch, rollout_tp=1, bucket_bytes=4096, **sizes):
    layout = TrainLayout(**sizes) if sizes else LAYOUT
    source = megatron_shard_map(arch, layout, vocab_multiple=8)
    target = vllm_shard_map(arch, generation_groups(layout.grid, rollout_tp))
    nodes = nodes_of(layout.num_ranks, 4)
    return source, target, plan_transfer(source, target, nodes, bucket_bytes)


ARCH = architecture(hidden_size=32, ffn_size=64, head_size=4, num_layers=4)


@pytest.mark.parametrize(
    "case",
    [
        small_plan(ARCH),
        small_plan(ARCH, 2, tp=4, dp=4),
        small_plan(moe(num_layers=2), 2, tp=2, dp=4, ep=4),
    ],
    ids=["pipeline", "relayed", "experts"],
)
def test_transfers_launch_what_is_simulated(case, monkeypatch):
    source, target, plan = case
    launched, sizes = defaultdict(list), (local_sizes(source), local_sizes(target))
    monkeypatch.setattr(torch.distributed, "P2POp", lambda op, tensor, peer: (op, tensor, peer))
    ranks = sorted({*source.holders, *target.holders})
    for rank in ranks:

        def launch(operations, rank=rank):
            messages = {
                op: [(peer, tensor.nbytes) for kind, tensor, peer in operations if kind is op]
                for op in (torch.distributed.isend, torch.distributed.irecv)
            }
            launched[rank].append(Launch(*messages.values()))
            return []

        monkeypatch.setattr(torch.distributed, "batch_isend_irecv", launch)
        here, there = (
            {name: torch.zeros(size) for name, size in of.get(rank, {}).items()} for of in sizes
        )
        with contextlib.suppress(TransferError):  # nothing arrives
            Transfer(plan, rank).run(here, there, torch.float32)
    assert launched == {r: p for r, p in programs(plan, ranks).items() if p}


def test_swapped_rounds_of_a_refit_deadlock():
    """Exchanging two neighbouring rounds of one rank that go to different ranks shows that the
    tests above could fail."""
    *_, plan = small_plan(ARCH, 2, tp=4, dp=4)
    good = programs(plan, range(16))
    assert faults(good) == []
    hangs = [
        bool(faults({**good, rank: [*program[:i], program[i + 1], program[i], *program[i + 2 :]]}))
        for rank, program in good.items()
        for i in range(len(program) - 2)
        if program[i].sends and program[i + 1].sends
        if program[i].sends[0][0] != program[i + 1].sends[0][0]
    ]
    assert any(hangs)


def test_another_size_at_one_end_of_a_refit_is_found():
    *_, plan = small_plan(ARCH)
    good = programs(plan, range(LAYOUT.num_ranks))
    rank, (first, *rest) = next((r, p) for r, p in good.items() if p[0].sends)
    ((to, size),) = first.sends
    found = faults({**good, rank: [Launch([(to, size + 2)], first.receives), *rest]})
    assert found == [f"rank {rank} sends {size + 2} bytes, and rank {to} expects {size}"]
