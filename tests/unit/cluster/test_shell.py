"""Quoting, proved by bash itself."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.cluster.shell import check_path, expandable, literal
from verl_hpc.errors import ConfigError


def bash(text, **environment):
    script = f"printf '%s\\0' {text}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env=environment)
    return done.stdout.decode()


LINE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@given(LINE)
def test_a_literal_reaches_a_program_as_it_is(text):
    assert bash(literal(text)) == f"{text}\0"


@given(LINE.filter(lambda t: "$" not in t))
def test_without_variables_an_expandable_word_is_literal(text):
    assert bash(expandable(text)) == f"{text}\0"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("$A/b", "one two/b"),
        ("${A}b", "one twob"),
        ("x${B:+:$B}", "x"),
        ("$(echo no)", "$(echo no)"),
        ("`echo no`", "`echo no`"),
        ("5$ and $", "5$ and $"),
        ('"quoted" \\n', '"quoted" \\n'),
        ("a b", "a b"),
        ("*", "*"),
        ("^lo,docker", "^lo,docker"),
    ],
)
def test_variables_are_expanded_and_nothing_else(text, expected):
    assert bash(expandable(text), A="one two") == f"{expected}\0"
    assert expandable("--gres=gpu:8") == "--gres=gpu:8", "simple words stay readable"


@pytest.mark.parametrize("path", ["/a b", "/a:b", "/a,b", "/a%j", "/a$b", '/a"b', "/a\nb", "/a#b"])
def test_a_path_that_some_tool_would_misread(path):
    with pytest.raises(ConfigError) as caught:
        check_path("directory", path)
    assert f"directory = {path!r}" in str(caught.value)
    assert repr(path[2]) in str(caught.value)
    for path in ("runs/a-b_c.1", "/scratch/u+v/x@y=z", "../runs", "~/runs"):
        assert check_path("directory", path) == path
