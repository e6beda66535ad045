"""Least squares with unknowns that are bounded below, in pure Python."""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDS = 4000


def solve(
    rows: Sequence[Sequence[float]],
    wanted: Sequence[float],
    start: Sequence[float],
    pulls: Sequence[float],
    least: Sequence[float],
) -> list[float]:
    """Find the x >= least with the smallest sum of (rows x - wanted)^2 + (pulls (x - start))^2.

    By coordinate descent, which converges since the sum is convex and its bounds are separate.

    Args:
        rows: coefficients of each equation.
        wanted: right side of each.
        start: values of unknowns that appear in no equation.
        pulls: how strongly each unknown stays at its start; above 0.
        least: lower bound of each unknown.
    """
    x = [*map(max, start, least)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(x)
    left = [
        sum(a * b for a, b in zip(row, x, strict=True)) - y
        for row, y in zip(rows, wanted, strict=True)
    ]
    squares = [
        sum(a * a for a in column) + pull * pull
        for column, pull in zip(columns, pulls, strict=True)
    ]
    # Minimise along one coordinate after another; `left` holds the residuals of all equations.
    for _ in range(_ROUNDS):
        largest = 0.0
        for k, column in enumerate(columns):
            slope = sum(a * r for a, r in zip(column, left, strict=True))
            slope += pulls[k] ** 2 * (x[k] - start[k])
            step = max(x[k] - slope / squares[k], least[k]) - x[k]
            if step:
                x[k] += step
                left = [r + a * step for r, a in zip(left, column, strict=True)]
                largest = max(largest, abs(step) / (abs(x[k]) + abs(start[k]) + abs(step)))
        if largest < 1e-9:
            break
    return x


def inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Invert a symmetric positive definite matrix by Gauss-Jordan elimination, which needs no
    pivoting for one."""
    size = len(matrix)
    work = [[*row, *(float(i == k) for k in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        work[i] = [value / work[i][i] for value in work[i]]
        for k in range(size):
            if k != i and (factor := work[k][i]):
                work[k] = [a - factor * b for a, b in zip(work[k], work[i], strict=True)]
    return [row[size:] for row in work]
