"""Attention by a kernel of the rollout's in the forward pass, and by PyTorch's backwards."""

import torch

from verl_hpc.engines.shared.invariant import InvariantAttention
from verl_hpc.engines.shared.packing import pack
from verl_hpc.engines.shared.padded import PaddedAttention


def kernel(query, key, value, lengths, scale):
    """Attention a query at a time, in float64."""
    outputs, start = [], 0
    for length in lengths:
        for i in range(start, start + length):
            keys, values = (
                t[start : i + 1].repeat_interleave(query.shape[1] // t.shape[1], 1).double()
                for t in (key, value)
            )
            scores = (query[i].double() * keys).sum(-1) * (scale or query.shape[-1] ** -0.5)
            outputs.append((scores.softmax(0)[..., None] * values).sum(0).float())
        start += length
    return torch.stack(outputs)


def test_values_are_the_kernels_and_gradients_pytorchs():
    torch.manual_seed(0)
    sequences = [torch.arange(5), torch.tensor([0, 1, 2, 9]), torch.arange(7)]
    for shared in (None, [0, 3, 0]):
        row = pack(sequences, 4, shared)
        num_tokens = row.tokens.shape[1]
        sizes = ((4, 8), (2, 8), (2, 8))
        inputs = [torch.randn(num_tokens, *s, requires_grad=True) for s in sizes]
        given = torch.randn(num_tokens, 4, 8)
        both = InvariantAttention(row, kernel), PaddedAttention(row)
        (one, of_one), (other, of_other) = (
            (out, torch.autograd.grad(out, inputs, given))
            for out in (attention.attend(*inputs, None) for attention in both)
        )
        torch.testing.assert_close(one, other)
        assert not torch.equal(one, other)  # the kernel rounds otherwise
        assert all(map(torch.equal, of_one, of_other))
