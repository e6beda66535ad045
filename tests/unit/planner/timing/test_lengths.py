"""Response lengths against samples of them."""

from random import Random
from statistics import mean

import pytest

from verl_hpc.planner.timing.lengths import Lengths, any_alive, survival


def draw(lengths, number, seed=0):
    """Lengths by chance, of the same lognormal."""
    random = Random(seed)
    return [
        min(random.lognormvariate(lengths._median_log, lengths.spread), lengths.longest)
        for _ in range(number)
    ]


@pytest.mark.parametrize("lengths", [Lengths(700, 3072), Lengths(2500, 3072)])
def test_moments_and_shares_are_those_of_samples(lengths):
    found = draw(lengths, 40_000)
    assert mean(found) == pytest.approx(lengths.mean, rel=0.02)
    assert mean(x * x for x in found) == pytest.approx(lengths.mean_square, rel=0.06)
    for tokens in (10, 300, 1000, 3000):
        share = mean(x > tokens for x in found)
        assert lengths.longer(tokens) == pytest.approx(share, abs=0.01)


def expected_longest(lengths, number):
    """Generation adds up the steps that some response still takes."""
    return sum(width * any_alive(share, number) for _, width, share in survival(lengths))


@pytest.mark.parametrize("number", [1, 8, 128])
def test_the_longest_of_some(number):
    lengths = Lengths(400, 4096, 0.8)
    longest = mean(max(draw(lengths, number, seed)) for seed in range(400))
    assert expected_longest(lengths, number) == pytest.approx(longest, rel=0.06)


def test_all_alike():
    lengths = Lengths(1024, 1024, 0.0)
    assert lengths.mean_square == 1024**2
    assert expected_longest(lengths, 1000) == 1024
    assert (lengths.longer(1000), lengths.longer(1025)) == (1.0, 0.0)


def test_stretches_have_the_mean():
    lengths = Lengths(700, 3072)
    mean_length = sum(width * share for _, width, share in survival(lengths))
    assert mean_length == pytest.approx(700, rel=1e-3)
    assert sum(width for _, width, _ in survival(lengths)) == pytest.approx(3072)
