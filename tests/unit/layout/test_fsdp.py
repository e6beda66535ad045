"""The map of fully_shard against PyTorch's own chunks, and against layouts that it transfers to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.models import architecture, moe
from tests.unit.layout.simulate import check_memory, filled_memory, logical_values
from tests.unit.layout.test_planner import check
from verl_hpc.errors import LayoutError
from verl_hpc.layout.box import View
from verl_hpc.layout.fsdp import Place, _regions, fsdp_shard_map, rows_of
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.vllm import vllm_shard_map


def chunks(tensor: torch.Tensor, num_ranks: int) -> list[torch.Tensor]:
    """The pieces of `torch.chunk`, which gives fewer where there are too few rows."""
    found = list(tensor.chunk(num_ranks, dim=0))
    return found + [tensor[:0]] * (num_ranks - len(found))


@given(st.integers(1, 300), st.integers(1, 64))
def test_rows_are_those_of_torch_chunk(num_rows, num_ranks):
    expected = [chunk.tolist() for chunk in chunks(torch.arange(num_rows), num_ranks)]
    assert [list(rows) for rows in rows_of(num_rows, num_ranks)] == expected


@given(
    st.integers(1, 9),
    st.integers(0, 3),
    st.sampled_from(["llama", "qwen2", "qwen3"]),
    st.sampled_from(["language_model", "value", "score"]),
    st.integers(5, 40),
)
def test_memory_of_every_rank_is_its_chunks(dp, first_rank, family, head, vocab_size):
    arch = architecture(family=family, vocab_size=vocab_size, num_layers=2)
    shard_map = fsdp_shard_map(arch, TrainLayout(dp=dp, first_rank=first_rank), head=head)
    memory = filled_memory(shard_map)
    whole = {n: torch.from_numpy(v) for n, v in logical_values(shard_map).items()}
    for place in range(dp):
        mine = {n: chunks(tensor, dp)[place].numpy() for n, tensor in whole.items()}
        found = memory.get(first_rank + place, {})
        check_memory(found, {n: part for n, part in mine.items() if part.size})


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(5, 40))
def test_ranks_at_the_same_place_of_groups_hold_the_same(size, copies, first_rank, vocab_size):
    """Each group is a layout of its own that holds all."""
    arch = architecture(vocab_size=vocab_size, num_layers=1)
    layout = TrainLayout(dp=size * copies, first_rank=first_rank, shard_size=size)
    whole = fsdp_shard_map(arch, layout)
    for copy in range(copies):
        alone = TrainLayout(dp=size, first_rank=first_rank + copy * size)
        for rank in alone.grid.ranks():
            one, other = (
                [(r.tensor, r.box, r.view) for r in shard_map.held_by(rank)]
                for shard_map in (fsdp_shard_map(arch, alone), whole)
            )
            assert one == other


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dp, rollout_tp", [(2, 1), (2, 2), (4, 2), (3, 1), (8, 4)])
@pytest.mark.parametrize("copies", [1, 2])
def test_to_vllm_moves_exactly_what_is_missing(dp, rollout_tp, tied, copies):
    arch = architecture(tied_embeddings=tied, family="qwen2", vocab_size=69)
    source = fsdp_shard_map(arch, TrainLayout(dp=dp * copies, shard_size=dp))
    dp *= copies
    replicas = [tuple(range(i, i + rollout_tp)) for i in range(0, dp, rollout_tp)]
    for ranks_per_node in (2, dp):
        check(source, vllm_shard_map(arch, replicas), nodes_of(dp, ranks_per_node))


@pytest.mark.parametrize("head", ["language_model", "value"])
def test_from_megatron_and_back(head):
    arch = architecture(family="qwen3", vocab_size=69)
    megatron = megatron_shard_map(arch, TrainLayout(tp=2, pp=2, dp=2), head=head, vocab_multiple=8)
    shards = fsdp_shard_map(arch, TrainLayout(dp=8), head=head)
    for source, target in ((megatron, shards), (shards, megatron)):
        check(source, target, nodes_of(8, 4))


@pytest.mark.parametrize(
    "arch, sizes, words",
    [
        (architecture(), dict(tp=2), "tensor_parallel = 2 with engine = fsdp"),
        (architecture(), dict(pp=2), "pipeline_parallel = 2"),
        (architecture(), dict(dp=2, cp=2), "context_parallel = 2"),
        (moe(), dict(dp=2, ep=2), "expert_parallel = 2"),
    ],
)
def test_what_it_does_not_do_is_named(arch, sizes, words):
    with pytest.raises(LayoutError, match=words):
        fsdp_shard_map(arch, TrainLayout(**sizes))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 8))
def test_a_tensor_in_a_larger_parameter_is_in_the_chunks_of_its_rows(experts, rows, columns, dp):
    """Blocks of a stack of experts, also transposed, and blocks of rows one under another."""
    stack = torch.arange(experts * 2 * rows * columns).view(experts, 2 * rows, columns)
    blocks = torch.arange(3 * rows * columns).view(3 * rows, columns)
    views = {
        f"{kind}{number}": (whole, view)
        for whole, kinds in (
            (stack, {"gate": stack[:, :rows], "up": stack[:, rows:].transpose(1, 2)}),
            (blocks, {"block": blocks.view(3, rows, columns), "bias": blocks[:, 0][:, None]}),
        )
        for kind, several in kinds.items()
        for number, view in enumerate(several)
    }
    for whole, view in views.values():
        place = Place(View("x", view.storage_offset(), view.stride()), len(whole), whole[0].numel())
        regions = list(_regions("x", tuple(view.shape), place, TrainLayout(dp=dp).shard_grid))
        assert sum(region.box.num_elements for region in regions) == view.numel()
        for region in regions:
            (rank,) = region.holders
            chunk, at = chunks(whole, dp)[rank].clone(), region.view
            held = chunk.as_strided(region.box.shape, at.strides, at.offset)
            assert torch.equal(held, view[region.box.slices])
