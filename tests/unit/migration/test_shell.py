"""Scripts that start verl: read, never run."""

import itertools
import re
import sys
import time
from contextlib import suppress

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.migration.shell.script import words_of
from verl_hpc.migration.shell.start import command_words

SCRIPT = r"""#!/usr/bin/env bash
set -xeuo pipefail
# MODEL=commented
MODEL=${MODEL:-Qwen/Qwen3-8B}   # a comment
NODES=${NODES:-2}
name="run_${MODEL}"
tokens=$(((1024 + 2048) * 2))
files="['$HOME/a.parquet', '$HOME/b.parquet']"
DATA=(
    data.train_files="$files"
    data.max_prompt_length=$((1024 * 2))
)
DATA+=(data.shuffle=False)
if [ "$NODES" = 3 ]; then
    DATA=(never)
fi
if [ -d /data ]; then
    UNUSED=1
fi
function helper() {
    MODEL=never
}
python3 -m verl.trainer.main_ppo --config-name=ppo_trainer \
    "${DATA[@]}" \
    actor_rollout_ref.model.path=$MODEL \
    trainer.logger='["console"]' \
    trainer.experiment_name="${NAME:-${name}_x}" \
    trainer.nnodes=$NODES $@ 2>&1 | tee log
"""


def test_a_script(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    assert words_of(file, {"HOME": "/home/me"}) == [
        "--config-name=ppo_trainer",
        "data.train_files=['/home/me/a.parquet', '/home/me/b.parquet']",
        "data.max_prompt_length=2048",
        "data.shuffle=False",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        'trainer.logger=["console"]',
        "trainer.experiment_name=run_Qwen/Qwen3-8B_x",
        "trainer.nnodes=2",
    ]


START = "python3 -m verl.trainer.main_ppo"


def read(folder, text, **environment):
    file = folder / "run.sh"
    file.write_text(text)
    return words_of(file, environment)


def test_the_environment_is_over_a_scripts_defaults(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("M=${M:-a}\npython3 -m verl.trainer.main_ppo model=$M\n")
    assert words_of(file, {"M": "b"}) == ["model=b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python3 -m verl.trainer.main_ppo a=$NOWHERE", "NOWHERE is not known"),
        ("X=$(hostname)\npython3 -m verl.trainer.main_ppo a=$X", "runs a program"),
        ("python3 -m verl.trainer.main_ppo a=$(hostname)", "runs a program"),
        ("echo nothing", "starts none of"),
    ],
)
def test_what_cannot_be_known_without_running_it(tmp_path, text, said):
    file = tmp_path / "run.sh"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        words_of(file, {})


def test_names_in_a_sum_need_no_dollar_sign(tmp_path):
    file = tmp_path / "run.sh"
    start = "python3 -m verl.trainer.main_ppo "
    file.write_text(f"p=$((1024 * 2))\nr=512\n{start}a=$(((p + r) * 2)) b=$((p+$r))\n")
    assert words_of(file, {}) == ["a=5120", "b=2560"]
    file.write_text(f"r=512\n{start}a=$((p + r))\n")
    with pytest.raises(ConfigError, match=r"\$p is not known"):
        words_of(file, {})


def test_words_of_a_command():
    words = ["python3", "-m", "verl.trainer.main_ppo", "a=1", "2>&1"]
    assert command_words(words) == ["a=1"]
    assert command_words(["a=1"]) == ["a=1"]


@pytest.mark.parametrize(
    "default", ["x_$(date -R)", '"x_${M:-a}_$(date -R)"', "${M:-$(date)}", '"$(date)"']
)
def test_a_default_that_runs_a_program_is_not_asked_for_where_the_variable_is_set(
    tmp_path, default
):
    file = tmp_path / "run.sh"
    file.write_text(f"NAME=${{NAME:-{default}}}\npython3 -m verl.trainer.main_ppo name=$NAME\n")
    assert words_of(file, {"NAME": "hello"}) == ["name=hello"]
    way = "give it: python -m verl_hpc migrate NAME=... run.sh"
    with pytest.raises(ConfigError, match=rf"\$\(date.*\) runs a program.*{way}"):
        words_of(file, {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun -m verl.trainer.sft_trainer data.x=1", "sft_trainer; .*recipe: sft"),
        ('"${LAUNCH[@]}" -m verl.trainer.main_ppo_sync a=1', "but verl.trainer.main_ppo_sync"),
        ("python3 -m verl.trainer.main_generation_server a=1", "docs/evaluation.md"),
        ("echo", "starts none of verl.trainer.main_ppo, verl_hpc.trainer.main_ppo$"),
    ],
)
def test_another_program_of_verls_is_named(tmp_path, line, said):
    file = tmp_path / "run.sh"
    file.write_text(f"LAUNCH=(python3)\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        words_of(file, {})


def test_a_date_is_that_of_now(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("n=${n:-a_$(date +%Y-%m)}\npython3 -m verl.trainer.main_ppo trainer.name=$n\n")
    assert words_of(file, {}) == [time.strftime("trainer.name=a_%Y-%m")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=1; B=2\n{} a=$A b=$B", ["a=1", "b=2"]),
        ("A=1; echo x\n{} a=$A", ["a=1"]),
        ("A=1 B=2\n{} a=$A b=$B", ["a=1", "b=2"]),
        (
            "A=a; A+=b; L=(1); L+=(2 $A)\n{} $A ${{L[@]}} $L ${{L[1]}}",
            ["ab", "1", "2", "ab", "1", "2"],
        ),
        ("{} 'a= #1' b=2 # c=3", ["a= #1", "b=2"]),
        ("L=(\n  a=1\n  # b=2 \\\n  c=3 # d\n)\n{} ${{L[@]}}", ["a=1", "c=3"]),
        ("CUDA_VISIBLE_DEVICES=0 X=1 {} a=1", ["a=1"]),
        ("A=2\nA=1 env\n{} a=$A", ["a=2"]),
        ("export A=1 B\ndeclare -a L=(a b)\n{} a=$A ${{L[@]}}", ["a=1", "a", "b"]),
        ("cat > x <<'END'\n{} a=1\nEND\n{} a=2", ["a=2"]),
        ("f() {{\n  {} a=1\n}}\ng() {{ A=2; }}\nA=1\n{} a=$A", ["a=1"]),
        ("{{ {} a=1; }} | tee log", ["a=1"]),
        ("mkdir x && {} a=1 || exit 1", ["a=1"]),
        ("mkdir x || {{ echo no; exit 1; }}\n{} a=1", ["a=1"]),
        ("A=1; [ -n $A ] || {{ echo no; exit 1; }}\n{} a=$A", ["a=1"]),
        ("[ $# -gt 9 ] && exit\nif [ -d x ]; then exit; fi\n{} a=1", ["a=1"]),
        ("{} a=1 > log b=2 2>&1 & wait", ["a=1", "b=2"]),
        (": ${{A:=3}} ${{B:=4}}\n{} a=$A b=${{B:=5}}", ["a=3", "b=4"]),
        ("A='x y'\n{} a=$A b=\"$A\" ${{A:+c=1}}", ["a=x", "y", "b=x y", "c=1"]),
        (
            'A=Qwen/Qwen3-8B\n{} a=$(basename "${{A,,}}") b=$(pwd)/x c=$PWD',
            ["a=qwen3-8b", "b=/here/x", "c=/here"],
        ),
        ('L=(a.x=1 a.y=2)\n{} ${{L[@]//a./b.}} ${{2:-z}} ${{@:2}} "$@"', ["b.x=1", "b.y=2", "z"]),
        ("set -- a=1 b=2\n{} $1 ${{@:2}}", ["a=1", "b=2"]),
        ("A=~/x\n{} a=$A b=${{B:-~/y}} c='~'", ["a=/home/me/x", "b=/home/me/y", "c=~"]),
    ],
)
def test_what_is_read(tmp_path, text, words):
    found = read(tmp_path, text.format(START, START), HOME="/home/me", PWD="/here")
    assert found == words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=1\nif [ -d x ]; then\n  echo {}\n  A=2\nfi", "line 4: $A is set in a branch"),
        ("A=1\nif [ -d x ]; then\n  for x in fi done; do echo; done\n  A=2\nfi", "line 4: $A is"),
        ("A=1\nif grep fi\nthen A=2; fi", "line 3: $A is set in a branch"),
        ("A=1\n[ -d x ] && A=2", "line 2: $A is set in a branch, a loop or behind &&"),
        ("A=1\ntrue || A=1\nls || A=2", "line 3: $A is"),
        ("for A in 1 2; do echo $A; done", "line 1: $A is"),
        ("A=1\nwhile read -r A; do echo; done < x", "line 2: $A is"),
        ("A=1\ncase $B in\n  a) A=2 ;;\n  (b) echo ;;\nesac\nC=1", "line 3: $A is"),
        ("A=1\nf() {{ local B=1; A=2; }}\nf", "line 3: $A is set"),
        ("A=1\n((A++))", "line 2: $A is set by a command"),
        ("A=1\nwhile IFS= read -r A; do echo; done < x", "line 2: $A is"),
        ("A=1\nif [ -d x ]; then unset A; fi", "line 2: $A is"),
        ("read A", "line 1: $A is set by a command"),
        ("A=1\nprintf -v A %s 2", "line 2: $A is set by a command"),
        ("A=1\neval 'A=2'", "line 2: $A is set by a command"),
        ("A=1\n((B = 2, A <<= 1))", "line 2: $A is set by a command"),
        ("A=1\nfor ((A = 0; A < 2; ++A)); do echo; done", "line 2: $A is set in a branch"),
        ("A=1\nA[1]=2", "line 2: $A is set by index"),
    ],
)
def test_a_variable_that_is_perhaps_set_is_not_known(tmp_path, text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        read(tmp_path, f"{text.format(START)}\n{START} a=$A", B="a")
    assert read(tmp_path, f"{text.format(START)}\n{START} a=1", B="a") == ["a=1"]


@pytest.mark.parametrize("test", ["A > 1", "A == 1 && A <= B", "A != 1 || B >= A"])
def test_a_comparison_of_numbers_sets_nothing(tmp_path, test):
    assert read(tmp_path, f"A=1; B=2\nif (({test})); then C=1; fi\n{START} a=$A b=$B") == [
        "a=1",
        "b=2",
    ]


@pytest.mark.parametrize("text", ["${A,,}", "${A//x/y}", "${A[@]/x/y}", "$(basename ${A,,})"])
def test_an_operator_gives_nothing_to_a_variable_that_is_not_known(tmp_path, text):
    with pytest.raises(ConfigError, match=r"\$A is not known; give it: "):
        read(tmp_path, f"{START} a={text}")


def test_the_user_decides_what_a_branch_does(tmp_path):
    branch = "if [ -d /data ]; then A=1; else A=2; fi\n"
    way = "give it: python -m verl_hpc migrate A=... run.sh"
    with pytest.raises(ConfigError, match=re.escape(way)):
        read(tmp_path, f"{branch}{START} a=$A")
        read(tmp_path, f"{branch}{START} a=$A", A="3")
    assert words_of(tmp_path / "run.sh", {"A": "4"}, {"A": "3"}) == ["a=3"]


@pytest.mark.parametrize(
    "text", ["A=$(hostname)", "A=1", "unset A", "read A", "for A in 1; do echo; done", ": ${A:=2}"]
)
def test_a_variable_that_is_given_stays(tmp_path, text):
    file = tmp_path / "run.sh"
    file.write_text(f"{text}\nB=${{A:-2}}x\n{START} a=$A b=$B")
    assert words_of(file, {}, {"A": "3"}) == ["a=3", "b=3x"]
    with pytest.raises(ConfigError, match=r"AA=\.\.\. is given, but the script has no such"):
        words_of(file, {}, {"A": "3", "AA": "3"})


@pytest.mark.parametrize("text", ["source site.sh", "[ -f x ] && . ./site.sh", 'eval "$(site)"'])
def test_what_a_file_that_is_not_there_may_set_is_not_known(tmp_path, text):
    assert read(tmp_path, f"A=1\n{text}\nB=2\n{START} a=$A b=$B") == ["a=1", "b=2"]
    for asked in ("$C", "${C:-1}", "${C-1}", "${C:+1}"):
        with pytest.raises(ConfigError, match=r"line 1: .*site.* is not followed and may set \$C"):
            read(tmp_path, f"{text}\n{START} a={asked}")
    assert words_of(tmp_path / "run.sh", {}, {"C": "3"})
    assert read(tmp_path, f"{text}\n{START} a=${{C:-1}}", C="3") == ["a=3"]


def test_a_sourced_file_beside_the_script(tmp_path):
    site = tmp_path / "site.sh"
    site.write_text(f"B=$(hostname)\nread C\nstart() {{ {START} a=1; }}")
    assert read(tmp_path, f"source site.sh\n{START} a=${{A:-1}}") == ["a=1"]
    for name in "BC":
        with pytest.raises(ConfigError, match=r"site.sh, line \d: \$.* is not read|site.sh, line"):
            read(tmp_path, f"source site.sh\n{START} a=${name}")
    site.write_text("exit")
    with pytest.raises(ConfigError, match="run.sh: site.sh: line 1: exit ends it before"):
        read(tmp_path, f"source site.sh\n{START} a=1")
    site.write_text(f"{START} b=$A")
    assert read(tmp_path, "A=1\nsource site.sh") == ["b=1"]
    site.write_text("A=${SITE:-1}\n")
    read(tmp_path, f"source site.sh\n{START} a=$A")
    assert words_of(tmp_path / "run.sh", {}, {"SITE": "2"}) == ["a=2"]
    site.write_text("source run.sh\nsource site.sh")
    assert read(tmp_path, f"A=1; source site.sh\n{START} a=$A") == ["a=1"]
    site.write_text('A="')
    assert read(tmp_path, f"A=1; source site.sh\n{START} a=$A") == ["a=1"]


@pytest.mark.parametrize(
    ("test", "taken"),
    [
        ('[ "$M" = "async" ]', 1),
        ('[ "$M" != async ]', 2),
        ("[[ $M == sync ]]", 2),
        ("[[ ! -z $M ]]", 1),
        ("[ $N -gt 7 ]", 1),
        ("[ $N -eq 7 ]", 2),
        ("true && [ -n $M ]", 1),
        ('[ -z "$M" ] || [ $N -le 8 ]', 1),
    ],
)
def test_a_branch_that_compares_what_is_known_is_followed(tmp_path, test, taken):
    text = f"M=async; N=8\nif {test}; then\n  A=1\nelse\n  A=2\nfi\n{START} a=$A"
    assert read(tmp_path, text) == [f"a={taken}"]
    text = f"M=async; N=8\nif false; then A=0\nelif {test}; then A=1; else A=2; fi\n{START} a=$A"
    assert read(tmp_path, text) == [f"a={taken}"]
    text = f"M=async; N=8\nif {test}; then {START} a=1; fi\n{START} a=2"
    assert read(tmp_path, text) == [f"a={taken}"]


@pytest.mark.parametrize(
    "test", ["[[ $M == a* ]]", "[ -f x ]", "[ $W = x ]", "[[ $M == async && $M ]]", '[ "$X" = 1 ]']
)
def test_a_branch_that_asks_for_more_is_not_followed(tmp_path, test):
    with pytest.raises(ConfigError, match=r"\$A is set in a branch"):
        read(tmp_path, f"M=async; W='a b'\nif {test}; then A=1; fi\n{START} a=$A")
    with pytest.raises(ConfigError, match="outside of branches"):
        read(tmp_path, f"M=async; W='a b'\nif {test}; then {START} a=1; fi")


UNREAD = (
    "${A##*/} ${A%.*} ${#A} ${!A} ${A:1} $1 ${1} $# $? $$ $0 ${a.b} ${oc.env:A} ${A/#x/y} "
    "${A/[a]/y} ${L[$i]} `ls`"
)


@pytest.mark.parametrize("text", UNREAD.split())
def test_what_is_not_expanded_is_named(tmp_path, text):
    for word in (text, f'"{text}"'):
        with pytest.raises(ConfigError, match=r"run.sh: line 2: .*" + re.escape(text)):
            read(tmp_path, f"A=x/y\n{START} a={word}", L="x")
    with pytest.raises(ConfigError, match="text with escapes"):
        read(tmp_path, f"{START} $'a\\n'")
    assert read(tmp_path, f"{START} 'a={text}'") == [f"a={text}"]
    assert read(tmp_path, f"A=x B={text}\n{START} a=1", L="x") == ["a=1"]


def test_interpolations_of_hydras_and_single_dollars_stay(tmp_path):
    text = f"{START} 'a=${{b.c}}' b=\\${{c}} c=\"\\$X\" d=$ e=\"$ \" f='$X'"
    assert read(tmp_path, text) == ["a=${b.c}", "b=${c}", "c=$X", "d=$", "e=$ ", "f=$X"]


def test_a_value_is_expanded_once(tmp_path):
    assert read(tmp_path, f"A='x$A'\nB='$(ls)'\n{START} a=$A b=$B") == ["a=x$A", "b=$(ls)"]


@pytest.mark.parametrize(
    "text",
    [
        "echo 'running verl.trainer.main_ppo' a=1",
        "echo -m verl.trainer.main_ppo a=1",
        "LOG=verl.trainer.main_ppo a=1",
        "pkill -f verl.trainer.main_ppo",
        "# -m verl.trainer.main_ppo",
    ],
)
def test_a_command_is_no_text_about_it(tmp_path, text):
    with pytest.raises(ConfigError, match="starts none of [^,]*, [^,]*$"):
        read(tmp_path, text)
    assert read(tmp_path, f"{text}\n{START} a=2") == ["a=2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{} a=1 \\\n  # b=2 \\\n  c=3", "line 2: a comment ends the command"),
        ("{} a=1 \\ \n  b=2", "line 1: a blank behind the backslash ends the command"),
        ("{} a=1 \\\n\n  b.c=2", "line 3: b.c=2 is no part of the command above it"),
        ("{} a=1\n  +b.c=$A \\\n d=1", "line 2: +b.c=$A is no part of the command above it"),
        (f"[ -d x ] && {{}} a=1 || {START} a=2", "line 1: nothing here says whether this"),
        ("A=1; exit\n{} a=1", "line 1: exit ends it before verl is started"),
        ("{} a={{b,c}}", "line 1: a={{b,c}}: bash makes several words"),
        ('A=1\n{} "a=1', 'line 2: " is not closed'),
        ("A=(1\n{} a=1", "line 1: ( is not closed"),
        ("{} a=$(ls", "line 1: ( is not closed"),
        ("{} a=${{A", "line 1: ${{ is not closed"),
        ("{} a='b", "line 1: ' is not closed"),
        ("{} a=`b", "line 1: ` is not closed"),
        ("{} ${{A:?tell me}}", "line 1: $A is not known"),
        ("cd x\n{} a=$PWD", "line 1: $PWD is set by a command"),
        ("{} a=$[1+1]", "line 1: $[1+1] is arithmetic of old"),
        ("{} a=<(cat b)", "line 1: <(cat b) is a file with what a program prints"),
        ("{} a=~+", "line 1: ~+ is a directory of bash's own"),
        ("for x in 1; do\nexit\ndone\n{} a=1", "line 2: exit within a loop"),
        ("f() {{ exit; }}\nf\n{} a=1", "line 2: f ends it before verl is started"),
        ("declare -A A=([x]=1)\n{} ${{A[@]}}", "line 1: $A is set by a command"),
    ],
)
def test_what_is_wrong_has_its_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match="run.sh: " + re.escape(said.format())):
        read(tmp_path, text.format(START))


def test_a_comment_behind_the_whole_command_ends_nothing(tmp_path):
    assert read(tmp_path, f"{START} a=1 \\\n  # b=2 \\\n\necho done") == ["a=1"]


def test_brackets_without_end_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match="too deep"):
        read(tmp_path, f"{START} a={'${A:-' * 5000}")


@pytest.mark.parametrize(
    "text",
    [
        "a0=1\n" + "".join(f"a{i}=a{i - 1}+a{i - 1}\n" for i in range(1, 20)) + f"{START} $((a19))",
        START + " {a" * 20000,
        START + " " + "{a," * 20000,
        START + " " + "{a" * 20000 + "}" * 20000,
        START + " " + "{a,b " * 20000,
        "A=aaaaaaaa\n" + "A=$A$A\n" * 40 + f"{START} a=$A",
        "L=(a b)\n" + 'L+=("${L[@]}")\n' * 40 + f"{START} ${{L[@]}}",
        "{ " * 10000 + "A=1; " + "} " * 10000 + f"\n{START} $A",
        "A=1; " + "{ A=2; } | cat\n" * 10000 + f"{START} $A",
    ],
)
def test_no_script_takes_many_steps(tmp_path, text):
    calls = itertools.count()
    sys.setprofile(lambda *_: next(calls))
    try:
        with suppress(ConfigError):
            read(tmp_path, text)
    finally:
        sys.setprofile(None)
    assert next(calls) < 20_000_000


def test_words_are_bounded(tmp_path):
    text = "A=aaaaaaaa\n" + "A=$A$A\n" * 40 + f"{START} a=$A"
    with pytest.raises(ConfigError, match="the script's words are more than 2097152 characters"):
        read(tmp_path, text)
