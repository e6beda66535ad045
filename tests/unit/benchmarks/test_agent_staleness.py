"""What programs lose by staleness: the interval of a difference of two shares."""

import pytest

from benchmarks.agent_staleness import difference


def test_the_interval_of_a_difference():
    gap, half = difference({"after": 0.5, "problems": 2000}, {"after": 0.6, "problems": 2000})
    assert (gap, half) == pytest.approx((0.1, 1.96 * (0.49 / 2000) ** 0.5))
