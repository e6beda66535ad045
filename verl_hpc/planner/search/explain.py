"""Explain why the best placement was chosen, and why others lost."""

from __future__ import annotations

from collections.abc import Iterator

from verl_hpc.planner.search.search import Candidate, Found
from verl_hpc.planner.timing.step import band_text

_MOST = 3
_LEAST_SHARE = 0.005
"""Smaller differences, as a share of a step, are not shown."""


def placed_text(candidate: Candidate) -> str:
    """Describe a placement, such as `actor + reference on 64, critic on 64 ranks`."""
    parts = [
        f"{' + '.join(roles)} on {size}"
        for roles, size in zip(candidate.sets, candidate.sizes, strict=True)
    ]
    return f"{', '.join(parts)} ranks"


def explain(found: Found, band: tuple[float, float] | None = None, most: int = 5) -> list[str]:
    """A line for the best, for each of the next best, and for those that do not fit.

    Args:
        found: by a search.
        band: seconds between which nine of ten steps of the best are; None if nothing tells.
        most: lines of the next best.
    """
    best = found.best
    lines = [f"{placed_text(best)}: {best.seconds:.1f} s a step, the least of those that fit"]
    for other in found.ranking[1 : 1 + most]:
        more = other.seconds - best.seconds
        reasons = ", ".join(_differences(best, other)) or "operators wait for each other longer"
        lines.append(f"{placed_text(other)}: {more:.1f} s more; {reasons}")
    if (left := len(found.ranking) - 1 - most) > 0:
        lines.append(f"{left} more placements fit, and are slower")
    near = sum(band is not None and other.seconds <= band[1] for other in found.ranking[1:])
    if near:
        lines.append(
            f"{near} of these are within the band of the best{band_text(band)}: only runs tell "
            "which is faster"
        )
    lines += [
        f"{' | '.join(' + '.join(roles) for roles in sets)}: does not fit" for sets in found.misfits
    ]
    return lines


def _differences(best: Candidate, other: Candidate) -> Iterator[str]:
    """Yield the operators that take longer, largest difference first, then the total gain of the
    others."""
    differs = {
        name: seconds - best.operators.get(name, 0.0) for name, seconds in other.operators.items()
    }
    shown = {n: d for n, d in differs.items() if abs(d) > _LEAST_SHARE * best.seconds}
    slower = sorted((n for n in shown if shown[n] > 0), key=lambda n: -shown[n])
    yield from (f"{name} {shown[name]:+.1f} s" for name in slower[:_MOST])
    won = sum(d for d in differs.values() if d < 0)
    if won < -_LEAST_SHARE * best.seconds:
        yield f"others {won:.1f} s"
    apart = len(other.sets) - len(best.sets)
    if apart > 0:
        yield "on disjoint ranks some overlap"
