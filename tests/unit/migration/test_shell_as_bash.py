"""Scripts are read as bash reads them: bash itself is asked."""

import re
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.script import words_of

START = "python3 -m verl.trainer.main_ppo"
SHOWN = r"""set -f; python3() { shift 2; for w; do printf '%s\0' "$w"; done; }; """
"""Shows a command's words; names of files are not read here."""


def by_bash(script, folder=None, **environment):
    """The words behind the program; None if bash fails."""
    done = subprocess.run(
        ["bash", "-c", SHOWN + script],
        capture_output=True,
        env={"HOME": "/home/me", **environment},
        timeout=60,
        cwd=folder,
    )
    failed = done.returncode or done.stderr
    return None if failed else [word.decode() for word in done.stdout.split(b"\0")[:-1]]


def by_us(script, **environment):
    with TemporaryDirectory() as folder:
        file = Path(folder, "run.sh")
        file.write_text(script)
        return words_of(file, {"HOME": "/home/me", **environment})


def joined(parts, most=4):
    return st.lists(parts, min_size=1, max_size=most).map("".join)


PLAIN = st.text("ab1=./,:@%+-_[]*?^!#~", min_size=1, max_size=4)
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


@given(scripts())
def test_words(script):
    expected = by_bash(script)
    try:
        found = by_us(script)
    except ConfigError as error:
        # What is not set is empty for bash, a blank that is escaped is a word, and ~1 is one where
        # no directory was pushed.
        told = ("is not known", "a blank behind the backslash", "a directory of bash's own")
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
        "A=1; if [ -d / ]; then A=2; fi\nRUN a=$A",
        "A=1; f() { A=2; }; f\nRUN a=$A",
        "A=1; for x in 1; do A=2; done\nRUN a=$A",
        "A=1; B=1; if [ -d / ]; then A=2 B=$A; fi\nRUN b=$B",
        "A=1; B=1; for x in 1 2; do A=$B; B=2; done\nRUN a=$A",
        "A=1; f() { : ${A:=2}; }; A=; f\nRUN a=$A",
        "A=1; if [ -d /nowhere ]; then A=2; fi | cat && A=3\nRUN a=$A",
        "A=1; A=2 && { :; } &\nRUN a=$A",
        "A=1; set -o pipefail; false | true && A=2\nRUN a=$A",
        "A=1; false && ls | cat || A=2\nRUN a=$A",
        "false && echo x | RUN a=1\nRUN a=2",
        "for x in 1; do exit; done\nRUN a=1",
        "f() { echo > /dev/null; exit; }; f\nRUN a=1",
        "f() { exit; }; g() { f; }; g\nRUN a=1",
        "exec true\nRUN a=1",
        "RUN a=$[1+1]",
        'RUN a="$[1+1]"',
        "RUN a=<(true) b=1",
        "RUN <(true) b=1",
        "a=<(true); RUN b=$a",
        "RUN a=1 > >(cat) 2> >(cat >&2)",
        "RUN a=~+ b=~-/x",
        "A=1; source /nowhere 2> /dev/null; true\nRUN a=${B:-1}",
        'eval "$(echo A=2)"\nRUN a=${A:-1}',
        'eval "$(echo A=2)"; [ -z ${A:+x} ] && B=3\nRUN a=${B:-1}',
    ],
)
@pytest.mark.parametrize("inherited", [{}, {"A": "9"}])
def test_never_other_words_than_bashs(script, inherited):
    script = script.replace("RUN", START)
    expected = by_bash(script, **inherited)
    assert expected is not None
    with suppress(ConfigError):
        found = by_us(script, **inherited)
        assert [re.sub(r"/dev/fd/\d+", "FILE", word) for word in expected] == found


@pytest.mark.parametrize(
    "script",
    [
        "A=1; A=2 | cat\nRUN a=$A",
        "A=1; echo x | A=3\nRUN a=$A",
        "A=1; A=2 & wait\nRUN a=$A",
        "A=1; A=2 && A=3 & wait\nRUN a=$A",
        "A=1; (A=2)\nRUN a=$A",
        "A=1; { A=2; } | cat\nRUN a=$A",
        "A=1; { A=2; B=3; } & wait\nRUN a=$A b=${B:-4}",
        "A=1; ls / | while read -r A; do B=2; done > /dev/null\nRUN a=$A b=${B:-4}",
        "A=1; { A=2; RUN a=$A; } | cat",
        "A=1; ls | exit\nRUN a=$A",
        "A=1; f() { A=2; }; f | cat\nRUN a=$A",
        "A=1; (exit 1) && B=2\nRUN a=$A",
        "A=0; B=0\nexport A=1 B=$A\nRUN a=$A b=$B",
        "A=0; B=0\nA=1 B=$A\nRUN a=$A b=$B",
        "A=${A:-1}\nRUN a=$A",
        "A=${A:-1}; if [ -d /tmp ]; then A=${A:-2}; : ${A:=3}; export A=${A:-4}; fi\nRUN a=$A",
        "A=1\nRUN a=$A",
        "path=~/x; p=~/a:~/b:c:~\nRUN $path $p path=~/y a=b:~/z x.y=~/z ~ a~/b ~/c '~/d' ~\"/e\"",
        'L=(~/x a=~/y); export P=~/z:~/u\nRUN ${L[@]} $P ${X:-~/v} b=${X:-~/v} "~/w"',
        "A=$(cat <<'E'\nit's\nE\n)\nRUN a=1",
        "A=$(cat <<-E\n\tit's )\n\tE\n)\nRUN a=1",
        "A=$(ls / # it's )\n)\nRUN a=1",
        'A="$(cat <<E\n"\nE\n)"\nRUN a=1',
        "A=$((1 << 2)); ((B = 1 << 2))\nRUN a=1",
    ],
)
@pytest.mark.parametrize("inherited", [{}, {"A": "9"}])
def test_the_same_words_as_bashs(script, inherited):
    script = script.replace("RUN", START)
    assert by_us(script, **inherited) == by_bash(script, **inherited)


@pytest.mark.parametrize(
    "sourced",
    [
        "# of a site\nexport A=2 B=$C\nD=~/x\nset -e\necho ready > /dev/null\n",
        "A=2; if [ -d /nowhere ]; then B=3; fi",
        "source other.sh",
        "return",
        "A=2 | cat",
        "A=5; [ -d /nowhere ] && return; A=6",
        "exit",
        "f() { A=7; }; f",
    ],
)
@pytest.mark.parametrize(
    "way", ["source site.sh", ". ./site.sh", "if true; then . $PWD/site.sh; fi"]
)
def test_a_sourced_file(tmp_path, monkeypatch, sourced, way):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.sh").write_text(sourced)
    (tmp_path / "other.sh").write_text("A=4")
    script = f"C=1; A=1\n{way}\n{START} a=$A b=${{B:-0}} d=${{D:-0}}"
    expected = by_bash(script, tmp_path)
    plain = sourced.startswith(("#", "source other", "A=2 |"))
    with nullcontext() if plain else suppress(ConfigError):
        (tmp_path / "run.sh").write_text(script)
        assert words_of(tmp_path / "run.sh", {"HOME": "/home/me"}) == expected


TERM = st.one_of(st.integers(0, 99).map(str), st.sampled_from(["p", "$p", "q", "-3", "zero"]))
SIGN = st.sampled_from(["+", "-", "*", "/", "%", " - ", " / ", "**", "<", "&&", "//"])


def bracketed(inner):
    return st.one_of(
        st.tuples(inner, SIGN, inner).map("".join),
        inner.map("({})".format),
        inner.map("- {}".format),
        inner.map("+{}".format),
    )


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
        ("r", "more than 20 variables are sums of one another"),
        ("9223372036854775807+1", "64 bits"),
        ("(" * 500 + "1" + ")" * 500, "expected whole numbers"),
    ],
)
def test_another_sum_is_named(text, said):
    with pytest.raises(ConfigError, match=rf"line 3: \$\(\(.*\)\): .*{said}"):
        by_us(f"p=1\nr=r\n{START} $(({text}))")
