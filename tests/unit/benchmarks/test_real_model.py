"""What the benchmark of a real model makes of its runs' answers."""

import pytest

from benchmarks.real_model import mcnemar


def test_mcnemars_test_is_that_of_a_fair_coin():
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(5, 0) == mcnemar(0, 5) == pytest.approx(2 / 2**5)
    # 8 or more heads of 10, and 2 or fewer: (1 + 10 + 45) * 2 of 1,024.
    assert mcnemar(8, 2) == pytest.approx(112 / 1024)
