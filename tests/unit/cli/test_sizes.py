"""Words such as tp=8,pp=4 on the command line."""

import pytest

from verl_hpc.cli.reshard import parse_sizes
from verl_hpc.errors import ConfigError

AXES = ("tp", "pp", "dp")


def test_sizes():
    for text, sizes in (
        ("tp=8,pp=4,dp=2", {"tp": 8, "pp": 4, "dp": 2}),
        ("dp=2", {"dp": 2}),
        (" pp=16 , tp=1 ", {"pp": 16, "tp": 1}),
    ):
        assert parse_sizes("--train", text, AXES) == sizes


NO_SIZES = [
    ("tp=2,xp=3", "'xp=3'; give each of tp, pp, dp once"),
    ("tp=2,tp=2", "'tp=2'; give each of"),
    ("", "''; give each of"),
    ("tp=2,", "''; give each of"),
    ("8", "'8'; give each of"),
    ("tp=0", "tp = '0'; a whole number from 1 up"),
    ("tp=-1", "tp = '-1'; a whole number"),
    ("tp=2.0", "tp = '2.0'; a whole number"),
    ("tp=", "tp = ''; a whole number"),
    ("tp", "tp = ''; a whole number"),
    ("pp=two", "pp = 'two'; a whole number"),
]


@pytest.mark.parametrize("text, words", NO_SIZES)
def test_what_is_no_size_is_told_with_its_flag(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_sizes("--train", text, AXES)
    assert str(caught.value).startswith(f"--train {text}: ")
    assert words in str(caught.value)
