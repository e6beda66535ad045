"""Figures as people read them."""

from __future__ import annotations

import math

import pytest

from verl_hpc.metrics.text import duration, number, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.43126, "0.4313"),
        (1e-6, "1e-06"),
        (1e-4, "1e-04"),
        (9.5e-5, "9.5e-05"),
        (0.001, "0.001"),
        (2.5e12, "2.5T"),
        (-5e14, "-500T"),
        (-1.5e15, "-1.5e+15"),
        (-999.5, "-999.5"),
        (12345.6, "12,346"),
        (3.1e6, "3.1M"),
        (-2.5e9, "-2.5G"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.08, "80ms"),
        (0.0999, "0.1s"),
        (9.44, "9.4s"),
        (59.97, "1m 00s"),
        (185.0, "3m 05s"),
        (3599.9, "1h 00m"),
        (97440.0, "27h 04m"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1536, "1.50 KiB"),
        (96 * 2**30, "96.00 GiB"),
        (2**52, "4,096.00 TiB"),
    ],
)
def test_size(num_bytes: float | None, text: str) -> None:
    assert size(num_bytes) == text
