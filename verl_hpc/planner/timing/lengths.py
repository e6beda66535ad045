"""Distribution of response lengths, and of the longest of many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import erf, exp, log, sqrt

POINTS = 48
"""Places at which an integral over the length of responses is taken."""


def _normal(x: float) -> float:
    return 0.5 * (1.0 + erf(x / sqrt(2.0)))


@dataclass(frozen=True)
class Lengths:
    """Response lengths in tokens: lognormal, cut where generation ends; or all alike.

    Args:
        mean: of what is left after the cut.
        longest: where generation ends.
        spread: standard deviation of the length's logarithm; 0 makes all alike.
    """

    mean: float
    longest: int
    spread: float = 0.7

    def __post_init__(self) -> None:
        assert 0 < self.mean <= self.longest and self.spread >= 0, self

    @cached_property
    def _median_log(self) -> float:
        """Log of the median of the lognormal before the cut, such that the mean after it is
        `mean`."""
        low, high = log(self.mean) - self.spread**2, log(self.longest) + 40.0 * self.spread
        for _ in range(80):
            middle = (low + high) / 2
            if self._moment(1, middle) < self.mean:
                low = middle
            else:
                high = middle
        return high

    def _moment(self, power: int, median_log: float) -> float:
        """Mean of min(X, longest)^power, of a lognormal X."""
        cut, s = log(self.longest), self.spread
        below = exp(power * median_log + (power * s) ** 2 / 2)
        below *= _normal((cut - median_log) / s - power * s)
        return below + self.longest**power * (1.0 - _normal((cut - median_log) / s))

    @cached_property
    def mean_square(self) -> float:
        """Mean of the squares, in tokens^2."""
        return self._moment(2, self._median_log) if self.spread else self.mean**2

    def longer(self, tokens: float) -> float:
        """Share of responses that are longer than so many tokens."""
        if not self.spread:
            return float(tokens < self.mean)
        if tokens >= self.longest:
            return 0.0
        if tokens <= 0:
            return 1.0
        return 1.0 - _normal((log(tokens) - self._median_log) / self.spread)


def any_alive(share: float, number: float) -> float:
    """Probability that one of `number` responses is longer, if `share` of all are."""
    return 1.0 - (1.0 - share) ** number


@lru_cache(maxsize=256)
def survival(lengths: Lengths) -> tuple[tuple[float, float, float], ...]:
    """Split a response's tokens into stretches: middle, number of tokens, and share of responses
    that reach it. Stretches are shorter where most responses end."""
    if not lengths.spread:
        return ((lengths.mean / 2, lengths.mean, 1.0),)
    ends = [lengths.longest * (i / POINTS) ** 2 for i in range(POINTS + 1)]
    stretches = [((a + b) / 2, b - a, 0.0) for a, b in pairwise(ends)]
    shares = [lengths.longer(middle) for middle, _, _ in stretches]
    # Rescale so that the stretches have exactly the given mean.
    scale = lengths.mean / sum(w * s for (_, w, _), s in zip(stretches, shares, strict=True))
    return tuple(
        (middle, width, min(share * scale, 1.0))
        for (middle, width, _), share in zip(stretches, shares, strict=True)
    )
