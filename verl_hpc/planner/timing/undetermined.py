"""Find the factors that the runs do not determine, and the others that absorb their share.

With rows A of relative errors and pulls P, factors have the covariance s^2 (A'A + P'P)^-1 around
what is fitted, and s^2 (P'P)^-1 before (ridge regression with a normal prior; Hoerl and Kennard,
1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from verl_hpc.planner.timing.cost import Term
from verl_hpc.planner.timing.least_squares import inverse

_HELD = 0.5
"""A factor is undetermined if the runs leave more than this share of its prior variance."""
_CONFUSED = -0.3
"""Two factors are confused if their correlation is below this: one makes up for the other."""


@dataclass(frozen=True)
class Undetermined:
    """A factor that stays near its initial value, because the runs hardly constrain it."""

    term: Term
    instead: Sequence[Term]
    """Terms that absorb its share; empty if hardly any operator depends on it."""


def undetermined(
    terms: Sequence[Term], rows: Sequence[Sequence[float]], pulls: Sequence[float]
) -> list[Undetermined]:
    """Find the fitted factors that the runs hardly constrain.

    Args:
        terms: of the factors.
        rows: of the equations, a coefficient for each factor.
        pulls: how strongly each factor stays; above 0.
    """
    # In units in which each factor has variance 1 without runs.
    scaled = [[a / pull for a, pull in zip(row, pulls, strict=True)] for row in rows]
    columns = list(zip(*scaled, strict=True)) if scaled else [()] * len(terms)
    products = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    for i, row in enumerate(products):
        row[i] += 1.0
    left = inverse(products)
    return [
        # Alone it would have 1 / products[i][i] left.
        Undetermined(term, _instead(terms, left, i) if products[i][i] * _HELD > 1.0 else ())
        for i, term in enumerate(terms)
        if left[i][i] > _HELD
    ]


def _instead(terms: Sequence[Term], left: Sequence[Sequence[float]], i: int) -> list[Term]:
    alike = {
        term: left[i][k] / (left[i][i] * left[k][k]) ** 0.5
        for k, term in enumerate(terms)
        if k != i
    }
    return sorted((t for t in alike if alike[t] < _CONFUSED), key=alike.__getitem__)
