"""Scripts are read as bash reads them: bash itself is asked."""

import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.script import words_of

START = "python3 -m verl.trainer.main_ppo"
SHOWN = r"""set -f; python3() { shift 2; for w; do printf '%s\0' "$w"; done; }; """
"""Shows a command's words; names of files are not read here."""


def by_bash(script):
    """The words behind the program; None if bash fails."""
    done = subprocess.run(
        ["bash", "-c", SHOWN + script], capture_output=True, env={"HOME": "/home/me"}, timeout=60
    )
    failed = done.returncode or done.stderr
    return None if failed else [word.decode() for word in done.stdout.split(b"\0")[:-1]]


def by_us(script):
    with TemporaryDirectory() as folder:
        file = Path(folder, "run.sh")
        file.write_text(script)
        return words_of(file, {"HOME": "/home/me"})


def joined(parts, most=4):
    return st.lists(parts, min_size=1, max_size=most).map("".join)


PLAIN = st.text("ab1=./,:@%+-_[]*?^!#", min_size=1, max_size=4)
NAMES = st.sampled_from("ABC")
NAMED = st.one_of(NAMES.map("${}".format), NAMES.map("${{{}}}".format))
CHOSEN = st.tuples(
    st.sampled_from("ABCX"),
    st.sampled_from([":-", "-", ":+", "+", ":=", "="]),
    st.sampled_from(["", "x", "x y", "$A", "'x'", '"x  y"', "${B:-z}", r"\$", r"\}", "~/x"]),
).map(lambda it: "${{{}{}{}}}".format(*it))
OTHERS = st.sampled_from(["$((1+2))", "${A,,}", "${B//a/b}", "${L[1]}", "${L[0]}"])
EXPANDED = st.one_of(NAMED, CHOSEN, OTHERS)
SINGLE = st.text('ab $\\"#\n`{}~', max_size=5).map("'{}'".format)
ESCAPED = st.sampled_from(list(" $\\\"'#`{}~;|&\n")).map("\\{}".format)
WITHIN = st.one_of(
    EXPANDED,
    st.text("ab '#{}~;|(", min_size=1, max_size=4),
    st.sampled_from([r"\$", r"\"", r"\\", r"\a", r"\`", "\\\n", "$ "]),
)
DOUBLE = st.lists(WITHIN, max_size=4).map("".join).map('"{}"'.format)
WORD = joined(st.one_of(PLAIN, EXPANDED, SINGLE, ESCAPED, DOUBLE))
ELEMENT = WORD.filter(lambda word: word.replace("\\\n", "")[:1] not in "[#")
"""No index of an array, and no comment."""
LISTED = st.sampled_from(
    ['"${L[@]}"', "${L[@]}", '"a${L[@]}b"', '"${L[*]}"', '"${L[@]//a/b}"', '"$@"', "$@"]
)


@st.composite
def scripts(draw):
    lines = ["A='a  b'", "B=", "C=aA", "L=('a b' '' c)"]
    for _ in range(draw(st.integers(0, 4))):
        name, more = draw(st.sampled_from("ABC")), draw(st.sampled_from(["=", "=", "+="]))
        lines.append(f"{name}{more}{draw(WORD)}{draw(st.sampled_from(['', ' # c', ' ;']))}")
    if draw(st.booleans()):
        words = draw(st.lists(st.one_of(ELEMENT, LISTED), max_size=3))
        lines.append(f"L{draw(st.sampled_from(['=', '+=']))}( {' '.join(words)} )")
    words = draw(st.lists(st.one_of(ELEMENT, LISTED), max_size=4))
    return "\n".join([*lines, draw(st.sampled_from([" ", " \\\n "])).join([START, *words])])


@settings(max_examples=300)
@given(scripts())
def test_words(script):
    expected = by_bash(script)
    try:
        found = by_us(script)
    except ConfigError as error:
        # What is not set is empty for bash, and a blank that is escaped is a word.
        told = ("is not known", "a blank behind the backslash")
        assert expected is None or any(text in str(error) for text in told), error
        return
    assert found == expected


SIGNS = list("$(){}[]'\"`\\\n;&|<># =!1a/")
KEYWORDS = [
    "if",
    "then",
    "fi",
    "else",
    "elif",
    "case",
    "esac",
    "for",
    "do",
    "done",
    "function",
    "[[",
    "]]",
    "set",
]
OPENINGS = ["A=", "$A", "${A", "${A:-", "$((", "))", "<<E", "E\n", "A=(", "2>", "f()"]
PIECES = [*SIGNS, *OPENINGS, *map("{} ".format, KEYWORDS), "-m verl.trainer.main_ppo "]


@settings(max_examples=300)
@given(joined(st.sampled_from(PIECES), most=40))
@example(")-m verl.trainer.main_ppo a=1 ))")
def test_no_text_is_more_than_an_error(script):
    with suppress(ConfigError):
        by_us(script)


@pytest.mark.parametrize(
    "script",
    [
        "M=b; [ $M = a ] && RUN a=1\n[ $M = b ] && RUN a=2",
        "M=b; [ $M = b ] || RUN a=1\nRUN a=2",
        "N=1; X=$(false) || N=8\nRUN n=$N",
        "A=1; if [ -d /nowhere ]; then false; fi && A=2\nRUN a=$A",
        "i=0; A=1\nwhile [ $i -lt 2 ]; do\n  [ $i = 1 ] && A=2\n  i=$((i+1))\ndone\nRUN a=$A",
        "i=0; A=1\nfor x in 1 2; do\n  if [ $i = 1 ]; then A=2; fi\n  i=1\ndone\nRUN a=$A",
        "M=b; f() { if [ $M = a ]; then A=2; fi; }\nM=a; A=1; f\nRUN a=$A",
        "f() { g; }; g() { A=2; }; A=1; f\nRUN a=$A",
        "f() { A=2; }; A=1; if ! f; then B=1; fi\nRUN a=$A",
        "A=1; command export A=2\nRUN a=$A",
        "A=1; builtin read A <<< 2\nRUN a=$A",
        "A=1; printf -v A 2\nRUN a=$A",
        "A=1; eval A=2\nRUN a=$A",
        'A=1; export "A=2"\nRUN a=$A',
        "A=1; : $((A=2))\nRUN a=$A",
        "A=1; echo $((A++)) > /dev/null\nRUN a=$A",
        ": ${A:=$(echo 1)} ${B:=2}\nRUN a=${A:-3} b=${B:-4}",
        "set -- a=1 b=2; shift\nRUN $@",
        "set -- a=1 b=2; set c=1 d=2\nRUN $@",
        "set -o pipefail -- a=1\nRUN $@",
        "exit 0\nRUN a=1",
        "[ -d /nowhere ] && RUN a=1\nRUN a=2",
        "[ -d / ] || RUN a=1\nRUN a=2",
        "A=1; true || { echo x; A=2; }\nRUN a=$A",
        "A=1; true || { :; false; } && A=2\nRUN a=$A",
        "A=1; ls / > /dev/null || { :; false; } && A=2\nRUN a=$A",
        "A=1; true || if true; then A=2; fi\nRUN a=$A",
        "A=1; false && { B=1; A=2; }\nRUN a=$A",
        "M=a; if [ $M = a ]; then exit 0; fi\nRUN a=1",
        "IFS=,; A=a,b\nRUN $A",
        "IFS=$'\\n\\t'; A='a b'\nRUN $A",
        "L=(a b); L=x\nRUN ${L[@]}",
        'L=(a b); unset "L[0]"\nRUN ${L[@]}',
        "RUN a={x:{y:1},z:2}",
        "RUN a=${HOSTNAME:-x} b=${UID:-1}",
    ],
)
def test_never_other_words_than_bashs(script):
    script = script.replace("RUN", START)
    expected = by_bash(script)
    assert expected is not None
    with suppress(ConfigError):
        assert by_us(script) == expected


TERM = st.one_of(st.integers(0, 99).map(str), st.sampled_from(["p", "$p", "q", "-3", "zero"]))
SIGN = st.sampled_from(["+", "-", "*", "/", "%", " - ", " / ", "**", "<", "&&", "//"])


def bracketed(inner):
    return st.one_of(
        st.tuples(inner, SIGN, inner).map("".join),
        inner.map("({})".format),
        inner.map("- {}".format),
        inner.map("+{}".format),
    )


@settings(max_examples=300)
@given(st.recursive(TERM, bracketed, max_leaves=6))
def test_sums(text):
    script = f"p=7\nq=-p+2\nzero=0\n{START} $(({text}))"
    expected = by_bash(script)
    try:
        assert by_us(script) == expected
    except ConfigError as error:
        signs = ("**", "<", "&&", "//", "++", "--", "- -", "+ +")
        assert expected is None or any(sign in text + str(error) for sign in signs), error


@pytest.mark.parametrize(
    ("text", "value"),
    [("(1-5)*2", "-8"), ("-7/2", "-3"), ("-7%3", "-1"), ("2*(3-(4-5))", "8"), ("", "0")],
)
def test_a_sum(text, value):
    assert by_us(f"{START} $(({text}))") == [value]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2**3", "expected whole numbers"),
        ("1/0", "divides by zero"),
        ("5%(1-1)", "divides by zero"),
        ("08", "expected whole numbers"),
        ("1_0", "expected whole numbers"),
        ("1.5", "expected whole numbers"),
        ("p++", "expected whole numbers"),
        ("p<2", "expected whole numbers"),
        ("p(2)", "expected whole numbers"),
        ("r", "expected whole numbers"),
        ("9223372036854775807+1", "64 bits"),
        ("(" * 500 + "1" + ")" * 500, "expected whole numbers"),
    ],
)
def test_another_sum_is_named(text, said):
    with pytest.raises(ConfigError, match=rf"line 3: \$\(\(.*\)\): .*{said}"):
        by_us(f"p=1\nr=r\n{START} $(({text}))")
