"""The harness drives the code of a run, and its counts are those of the messages."""

import pytest
import torch

from benchmarks import scale
from verl_hpc.step.batch import TOKENS


@pytest.fixture(scope="module")
def samples():
    return scale.some_samples()


@pytest.mark.parametrize("size, rank", [(128, 0), (4096, 4095)])
def test_a_step_of_one_rank(samples, size, rank):
    one = scale.Rank(rank, size, samples)
    parts = {part.name: part.traffic for part in one.step()}
    assert one.made["samples"].samples == tuple(samples)
    assert one.made["scores"].values == [float(i % 3 == 0) for i in range(len(samples))]
    assert one.made["scores"].metrics["reward/accuracy"] == pytest.approx(1 / 3, abs=1e-3)
    sequences, lengths = one.made["sequences"], [s.length for s in samples]
    assert sequences.positions == one.made["samples"].owned_by("actor", rank // scale.TRAIN_RANKS)
    own_lengths = [lengths[i] for i in sequences.positions]
    assert [len(tokens) for tokens in sequences[TOKENS]] == own_lengths
    whole, *steps = one.made["plans"]
    assert sorted(i for row in whole.bins for i in row) == [*range(len(sequences.positions))]
    assert len(steps) == scale.MINI_BATCHES
    for plan in (whole, *steps):
        num_samples = sum(map(len, plan.bins))
        assert len(plan.bins) >= min(2 * scale.TRAIN_PP, num_samples)
    # 17 bytes a sample and 4 a rank, of others; 64 a round, of the flag and of the rows.
    rounds = size.bit_length() - 1
    own = len(samples) * 8 // size if rank % 8 == 0 else 0
    bare = 17 * (len(samples) - own) + 4 * (size - 1) + 2 * 64 * rounds
    in_envelopes = bare - parts["facts of responses"].bytes_received
    assert 0 <= in_envelopes <= 56 * rounds
    assert parts["facts of responses"].messages_sent <= 3 * rounds
    facts = sum(part.bytes_received for name, part in parts.items() if name != "move of tokens")
    assert facts < 1e6


def test_a_rank_receives_the_tokens_that_it_lacks(samples):
    one = scale.Rank(9, 128, samples)
    (moved,) = (part.traffic for part in one.step() if part.name == "move of tokens")
    lacking = set(one.made["sequences"].positions).difference(one.columns.positions)
    columns = one.made["sequences"].values.values()
    by_position = zip(one.made["sequences"].positions, *columns, strict=True)
    tensors = [one for at, *tensors in by_position if at in lacking for one in tensors]
    expected = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    assert moved.bytes_received == expected
    assert all(isinstance(tensor, torch.Tensor) for column in columns for tensor in column)
