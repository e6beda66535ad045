"""YAML as version 1.2 reads it, and what is refused where PyYAML fails or guesses."""

import math

import pytest
import yaml

from verl_hpc.config.plain_yaml import read_yaml, write_yaml


@pytest.mark.parametrize(
    "text, value",
    [
        ("010", 10), ("-7", -7), ("+7", 7), ("0x1F", 31), ("0o17", 15),
        ("1e-6", 1e-6), ("1.5E3", 1500.0), (".5", 0.5), ("5.", 5.0), ("-.inf", -math.inf),
        ("1:30", "1:30"), ("1_000", "1_000"), ("yes", "yes"), ("off", "off"), ("2026-11-22",) * 2,
        ("2026-99-99",) * 2, ("99:99",) * 2, ("true", True), ("False", False), ("~", None),
        ("", None), ("{<<: {a: 1, b: 1}, b: 2}", {"a": 1, "b": 2}), ("!!str 5", "5"),
        ("[&a {x: 1}, *a]", [{"x": 1}, {"x": 1}]),
    ],
)  # fmt: skip
def test_values(text, value):
    found = read_yaml(text)
    assert found == value
    assert type(found) is type(value)


REFUSALS = [
    ("!!int abc", "'abc' is not a number"),
    ("!!float 1:30", "'1:30' is not a number"),
    ("9" * 5000, "9...' is not a number"),
    ("!!bool maybe", "impossible kind"),
    ('"\\UFFFFFFFF"', "impossible kind"),
    ('"a\\0b"', "a character that no file can hold"),
    ('"\\ud800"', "a character that no file can hold"),
    ("[" * 5000, "too many levels"),
    ("{a: " * 3000 + "1" + "}" * 3000, "too many levels"),
    ("- " * 3000 + "x", "too many levels"),
    ("? " * 3000 + "x", "too many levels"),
    ("&a [*a]", "unconstructable recursive node"),
    ("a: 1\nb: 2\na: 3\n", "'a' is given twice"),
    ("optimizer:\n  lr: 1\n  lr: 2\n", r"'lr' is given twice\n.*line 3, column 3"),
    ("{[1]: 2}", "unhashable key"),
    ("!!timestamp 2026-99-99", "constructor"),
    ("!!set {a, b}", "constructor"),
    ("--- a\n--- b\n", "single document"),
]


@pytest.mark.parametrize("text, problem", REFUSALS)
def test_refusals(text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        read_yaml(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "value",
    ["010", "1:30", "yes", "off", "1e-6", "0o17", "~", "2026-01-01", "\n", "é", "null", "<<", "",
     1e-6, 1e300, -math.inf, 5, True, None, {"a": [1, {"b": "no"}]}],
)  # fmt: skip
def test_what_is_written_is_read_back_by_both_versions(value):
    text = write_yaml({"value": value})
    assert read_yaml(text) == yaml.safe_load(text) == {"value": value}
