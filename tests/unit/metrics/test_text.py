"""Figures as people read them."""

import math

import pytest

from verl_hpc.metrics.text import duration, number, size, sparkline, tick_labels, visible

NUMBERS = {
    None: "-", 0.0: "0", 0.43126: "0.4313", 1e-6: "1e-6", 1e-4: "1e-4", 9.5e-5: "9.5e-5",
    0.001: "0.001", 2.5e12: "2.5T", -5e14: "-500T", -1.5e15: "-1.5e15", -999.5: "-999.5",
    12345.6: "12,346", 3.1e6: "3.1M", -2.5e9: "-2.5G", math.nan: "nan", math.inf: "inf",
}  # fmt: skip
DURATIONS = {
    None: "-", 0.08: "80ms", 0.0999: "0.1s", 9.44: "9.4s", 59.97: "1m 00s", 185.0: "3m 05s",
    3599.9: "1h 00m", 97440.0: "27h 04m",
}  # fmt: skip
SIZES = {
    None: "-", 0: "0 B", 1536: "1.50 KiB", 96 * 2**30: "96.00 GiB", 2**52: "4,096.00 TiB"
}  # fmt: skip
VISIBLE = {
    "a\n\tb \u00e9\u4e2d\U0001f600": "a\n\tb \u00e9\u4e2d\U0001f600",
    "\x1b[31m\r\x00\x7f": "\\x1b[31m\\r\\x00\\x7f",
    "\x9b31m\x85": "\\x9b31m\\x85",
    "\u202egnp\u2066": "\\u202egnp\\u2066",
    "\ud83d": "\\ud83d",
    "\U0001f469\u200d\U0001f52c\u00a0": "\U0001f469\u200d\U0001f52c\u00a0",
}


@pytest.mark.parametrize(
    ("shown", "texts"),
    [(number, NUMBERS), (duration, DURATIONS), (size, SIZES), (visible, VISIBLE)],
)
def test_what_people_read(shown, texts):
    assert {value: shown(value) for value in texts} == texts


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([9e-4, 9.5e-4, 1e-3, 1.05e-3], "0.00090 0.00095 0.00100 0.00105"),
        ([0.0, 5e-4, 1e-3], "0.0000 0.0005 0.0010"),
        ([0.0, 2e-4, 4e-4], "0 2e-4 4e-4"),
        ([9.5e-7, 1e-6, 1.05e-6], "9.5e-7 1e-6 1.05e-6"),
        ([-0.5, 0.0, 0.5], "-0.5 0.0 0.5"),
        ([800.0, 1000.0, 1200.0], "800 1,000 1,200"),
        ([0.0, 5e5, 1e6], "0.0M 0.5M 1.0M"),
        ([998e6, 1000e6, 1002e6], "0.998G 1.000G 1.002G"),
    ],
)
def test_ticks_have_one_notation(ticks, labels):
    assert tick_labels(ticks) == labels.split()


def test_sparkline():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, math.nan, 2.0]) == "▁▁"
    assert sparkline([]) == ""
