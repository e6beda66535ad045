"""Random batches in float64, ranks that are threads, and losses held to loops over scalars."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from tests.unit.ranks import on_ranks


@st.composite
def shapes(draw):
    return draw(st.integers(1, 4)), draw(st.integers(1, 7))


@st.composite
def numbers(draw, shape, low=-3.0, high=3.0):
    """A tensor of distinct, unround float64 numbers."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    return torch.from_numpy(generator.uniform(low, high, shape))


@st.composite
def masks(draw, shape, dtype=torch.float64):
    """(B, T) of 0 and 1, gaps and empty rows included."""
    row = st.lists(st.booleans(), min_size=shape[1], max_size=shape[1])
    rows = draw(st.lists(row, min_size=shape[0], max_size=shape[0]))
    return torch.tensor(rows, dtype=dtype)


def on_parts(work, parts):
    """Call `work(part, reduce)` for each part on a rank of its own; reduce sums over ranks."""

    def rank(control):
        return work(parts[control.rank], lambda tensor: sum(control.allgather(tensor)))

    return on_ranks(len(parts), rank)


def deal(draw, num_rows):
    """Rows dealt to 1 to 3 ranks; a rank may get none."""
    ranks = draw(st.integers(1, 3))
    owner = draw(st.lists(st.integers(0, ranks - 1), min_size=num_rows, max_size=num_rows))
    return [[row for row in range(num_rows) if owner[row] == rank] for rank in range(ranks)]


def agree(ours, oracle, values):
    """Assert that losses and their gradients are those of an oracle.

    Args:
        ours: losses of a tensor.
        oracle: the same losses, one after another, of the tensor's elements as scalars that can be
            differentiated.
        values: the tensor, in float64.
    """
    leaves = [x.clone().requires_grad_() for x in values.flatten()]
    whole = values.clone().requires_grad_()
    losses, expected = ours(whole).flatten(), oracle(leaves)
    assert losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx([float(x) for x in expected], rel=1e-9, abs=1e-9)
    # Each loss weighs otherwise, so that no two gradients can be taken for each other.
    (losses * torch.arange(1, len(losses) + 1)).sum().backward()
    total = sum(((i + 1) * x for i, x in enumerate(expected)), torch.zeros(()).requires_grad_())
    total.backward()
    slopes = [0.0 if x.grad is None else float(x.grad) for x in leaves]
    assert whole.grad.flatten().tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-9)
