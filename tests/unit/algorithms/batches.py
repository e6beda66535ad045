"""Random batches in float64, and data-parallel ranks that are threads."""

import numpy as np
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
    rows = draw(
        st.lists(
            st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]),
            min_size=shape[0],
            max_size=shape[0],
        )
    )
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
