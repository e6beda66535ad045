"""Scored responses as plain lists, and estimators held to loops over them."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from tests.unit.algorithms.batches import on_parts
from verl_hpc.algorithms.advantage import Scored
from verl_hpc.algorithms.masked import alone


@dataclass(frozen=True)
class Row:
    """One response; lists have an element a token."""

    group: int
    score: float
    rewards: list
    mask: list
    values: list
    greedy: float
    log_probs: list | None = None
    squares: list | None = None

    @property
    def counted(self):
        """Places of the tokens that count."""
        return [t for t, counts in enumerate(self.mask) if counts]


@st.composite
def rows(draw, several=False):
    """1 to 6 responses to 1 to 3 prompts, of which some may have one alone; masks have gaps, or are
    empty; some groups have equal scores."""
    width = draw(st.integers(1, 5))
    number = st.floats(-3, 3).map(lambda x: round(x, 3))
    groups = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    groups = sorted(groups + groups if several else groups)
    renamed = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    greedy = {group: draw(number) for group in renamed}
    equal = draw(st.booleans())
    first = draw(number)

    def tokens(of):
        return draw(st.lists(of, min_size=width, max_size=width))

    def row(group):
        score = first if equal else draw(number)
        rewards, mask, values = (tokens(of) for of in (number, st.integers(0, 1), number))
        # Log-probs of tokens, and sums of squares that go with them.
        p = tokens(st.integers(1, 100).map(lambda x: x / 100))
        shares = tokens(st.floats(0, 1))
        squares = [x * x + share * (1 - x) ** 2 for x, share in zip(p, shares, strict=True)]
        of_policy = [math.log(x) for x in p], squares
        return Row(renamed[group], score, rewards, mask, values, greedy[group], *of_policy)

    return [row(group) for group in groups]


def scored(rows, here=None, reduce=alone):
    """The batch of an estimator; `here` says which of the rows this rank has."""
    here = range(len(rows)) if here is None else here
    mine = [rows[i] for i in here]

    def tokens(name):
        width = len(rows[0].mask)
        lists = [getattr(row, name) for row in mine]
        if any(of is None for of in lists):
            return None
        return torch.tensor(lists, dtype=torch.float64).view(len(mine), width)

    return Scored(
        scores=torch.tensor([row.score for row in rows], dtype=torch.float64),
        groups=torch.tensor([row.group for row in rows]),
        here=torch.tensor([*here], dtype=torch.int64),
        pad=lambda: (tokens("mask"), tokens("rewards")),
        values=tokens("values"),
        process_rewards=tokens("values"),
        greedy=torch.tensor([row.greedy for row in rows], dtype=torch.float64),
        log_probs=tokens("log_probs"),
        sum_p_squared=tokens("squares"),
        components={
            "score": torch.tensor([row.score for row in rows], dtype=torch.float64),
            "form": torch.tensor([row.greedy * row.score for row in rows], dtype=torch.float64),
        },
        reduce=reduce,
    )


def tokens_of(estimator, batch):
    """(B, T) advantages, and returns where it gives some."""
    found = estimator(batch)
    given = found if isinstance(found, tuple) else (found,)
    return [batch.of_tokens(g) if g.dim() == 1 else g for g in given]


def of_responses(rows, values):
    """Each token that counts has its response's."""
    return [[v * m for m in row.mask] for row, v in zip(rows, values, strict=True)]


def whitened(found, rows):
    """Lists of a row's tokens, less their mean and by their deviation, over all that count."""
    pairs = [list(zip(xs, row.mask, strict=True)) for row, xs in zip(rows, found, strict=True)]
    counted = [x for row in pairs for x, m in row if m]
    n = len(counted)
    mean = sum(counted) / (n + 1e-8)
    variance = sum((x - mean) ** 2 for x in counted) / (n + 1e-8) * n / max(n - 1, 1)
    return [[(x - mean) / (variance + 1e-8) ** 0.5 if m else 0.0 for x, m in row] for row in pairs]


def agrees(estimator, oracle, rows, owners, tolerance=1e-9):
    """The estimator gives what the oracle does, on one rank and dealt to several.

    Args:
        oracle: rows to lists of their tokens' advantages, or a tuple of these and the returns.
        owners: for each row, which of the ranks 0 to 2 has it.
    """
    expected = oracle(rows)
    expected = expected if isinstance(expected, tuple) else (expected,)
    wide = [torch.tensor(e, dtype=torch.float64) for e in expected]
    counts = torch.tensor([row.mask for row in rows]).bool()
    whole = tokens_of(estimator, scored(rows))
    assert len(whole) == len(wide)
    for mine, other in zip(whole, wide, strict=True):
        torch.testing.assert_close(mine[counts], other[counts], rtol=tolerance, atol=tolerance)
    assert (whole[0][~counts] == 0).all()
    deals = [
        [i for i, owner in enumerate(owners[: len(rows)]) if owner == rank] for rank in (0, 1, 2)
    ]

    def part(here, reduce):
        return tokens_of(estimator, scored(rows, here, reduce=reduce))

    for here, partial in zip(deals, on_parts(part, deals), strict=True):
        for mine, other in zip(partial, whole, strict=True):
            torch.testing.assert_close(mine, other[here], rtol=tolerance, atol=tolerance)


owners = st.lists(st.integers(0, 2), min_size=12, max_size=12)


def simple(scores, groups):
    """Responses of one token each, with nothing but these."""
    return scored([Row(g, s, [s], [1], [0.0], 0.0) for s, g in zip(scores, groups, strict=True)])


def mates(rows, row):
    """Scores of all responses to the same prompt."""
    return [other.score for other in rows if other.group == row.group]
