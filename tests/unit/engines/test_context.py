"""Splitting a packed row over context-parallel ranks, against one rank's row."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.engines.megatron import context
from verl_hpc.engines.megatron.context import SplitAttention, pack_split
from verl_hpc.engines.shared.packing import pack
from verl_hpc.engines.shared.padded import PaddedAttention

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=5)
NUM_RANKS = st.integers(2, 4)


def split(lengths, num_ranks, multiple=1):
    """The row as each rank has it."""
    sequences = [torch.arange(n) + 100 * i + 1 for i, n in enumerate(lengths)]
    groups = [SimpleNamespace(rank=lambda r=r: r, size=lambda: num_ranks) for r in range(num_ranks)]
    return sequences, [pack_split(sequences, multiple, group) for group in groups]


def test_a_sequence_of_twelve_tokens_on_three_ranks():
    _, rows = split([12], 3)
    found = [row.local(row.positions[0]).tolist() for row in rows]
    assert found == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]


@given(LENGTHS, NUM_RANKS, st.integers(1, 6))
def test_ranks_have_equal_parts_that_make_up_the_row(lengths, num_ranks, multiple):
    sequences, rows = split(lengths, num_ranks, multiple)
    row = rows[0]
    parts = [r.local(r.tokens[0]) for r in rows]
    assert len({len(part) for part in parts}) == 1
    assert len(parts[0]) % multiple == 0
    whole = torch.cat(parts).index_select(0, row.split_over.order)
    assert torch.equal(whole, row.tokens[0])
    assert all(n % (2 * num_ranks) == 0 for n in row.lengths)
    for tokens, sequence in zip(row.split(whole), sequences, strict=True):
        assert torch.equal(tokens, sequence)
    for targets, sequence in zip(row.split(row.targets), sequences, strict=True):
        assert torch.equal(targets[:-1], sequence[1:])
    given_back = row.split(row.join([s[1:, None] for s in sequences]))
    for part, sequence in zip(given_back, sequences, strict=True):
        assert torch.equal(part[:-1, 0], sequence[1:])


@given(LENGTHS, NUM_RANKS)
def test_every_rank_attends_to_as_much_of_long_sequences(lengths, num_ranks):
    _, rows = split([n * 2 * num_ranks for n in lengths], num_ranks)
    read = [
        sum((own.stop - own.start) * (seen.stop - seen.start) for own, seen in pieces)
        for pieces in (SplitAttention(row)._pieces() for row in rows)
    ]
    assert len(set(read)) == 1


@given(LENGTHS, NUM_RANKS)
def test_attention_is_that_of_separate_sequences(lengths, num_ranks):
    torch.manual_seed(0)
    sequences, rows = split(lengths, num_ranks)
    total = rows[0].tokens.shape[1]
    query, key = (torch.randn(total, heads, 4) for heads in (4, 2))
    value = torch.randn(total, 2, 3)
    patch = pytest.MonkeyPatch()
    parts = []
    for row in rows:
        both = torch.cat([torch.cat([r.local(key), r.local(value)], -1) for r in rows])
        patch.setattr(context, "gather_from_sequence_parallel_region", lambda *_, b=both, **__: b)
        local = (row.local(t) for t in (query, key, value))
        parts.append(SplitAttention(row).attend(*local, None))
    patch.undo()
    joined = torch.cat(parts).index_select(0, rows[0].split_over.order)
    alone = pack(sequences)
    expected = PaddedAttention(alone).attend(
        *(torch.cat(rows[0].split(t)) for t in (query, key, value)), None
    )
    torch.testing.assert_close(torch.cat(rows[0].split(joined)), expected, atol=1e-6, rtol=0)
