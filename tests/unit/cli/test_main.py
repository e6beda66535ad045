"""The command line as a whole: verbs, help, and what the login node must not import."""

import re
import runpy
import subprocess
import sys

import pytest

from tests.unit.cli.status_runs import HEAVY
from verl_hpc import __version__
from verl_hpc.cli.main import VERBS, main


def python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_without_a_verb_the_verbs_are_listed(capsys):
    finished = python("-m", "verl_hpc")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.startswith("usage: python -m verl_hpc VERB")
    for verb, text in VERBS.items():
        assert f"  {verb} " in finished.stdout
        assert text in finished.stdout
    for word in ("--help", "-h", "help"):
        assert (main([word]), capsys.readouterr()) == (0, (finished.stdout, ""))


NEAREST = {"trian": "train", "sbmit": "submit", "reprot": "report"}


@pytest.mark.parametrize("verb", [*NEAREST, "os", "main", "../x"])
def test_an_unknown_verb_is_answered_with_the_nearest_or_all(verb, capsys):
    assert main([verb]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"unknown verb {verb!r}; ")
    near = f"did you mean {NEAREST[verb]}" if verb in NEAREST else "reshard|did you mean"
    assert re.search(near, shown.err)


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version(word, capsys):
    assert (main([word]), capsys.readouterr().out) == (0, f"verl_hpc {__version__}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m verl_hpc {verb} ")
    _, _, examples = shown.partition("\nexamples:\n")
    assert re.search(rf"python -m verl_hpc[ .]{verb} ", examples)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_train_is_a_program_too_as_verls_tutorials_call_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["program", "--no-such-option"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("verl_hpc.cli.train", None, "__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err


NOWHERE = "there/is/no such thing"
NAMED = (
    "budget dashboard fetch generations hang list logs migrate overlap report reproduce save "
    "status stop"
)
"""Verbs that take a name alone."""
BAD_INPUT = {verb: [NOWHERE] for verb in NAMED.split()} | {
    "attach": [NOWHERE, "--rank", "1"],
    "comm": ["--config", NOWHERE],
    "config": ["--explain", NOWHERE],
    "doctor": ["--cluster", NOWHERE],
    "export": ["--step", NOWHERE, "--out", "model"],
    "import": ["--hf", NOWHERE, "--out", "steps"],
    "plan": ["--config", NOWHERE, "--cluster", NOWHERE, "--nodes", "1"],
    "reshard": ["--train", "tp=1", "--rollout", "tp=1", "--gpus-per-node", "8", "--model", NOWHERE],
    "submit": ["--config", NOWHERE, "--cluster", NOWHERE, "--nodes", "1", "--time", "10"],
    "train": ["--config", NOWHERE],
}


OF_THEIR_OWN = ("export", "import", "status", "train")
"""Verbs that get a process: `import` starts MPI, `train` starts Python anew, and the others stand
for the verbs of compute nodes and of login nodes."""


def test_bad_input_is_known_for_every_verb():
    assert sorted(BAD_INPUT) == sorted(VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in OF_THEIR_OWN])
def test_what_is_not_there_is_named(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        status = main([verb, *BAD_INPUT[verb]])
    except SystemExit as ended:
        status = ended.code
    assert status not in (0, None)
    shown = capsys.readouterr()
    assert NOWHERE in shown.out + shown.err
    assert list(tmp_path.iterdir()) == [], "something was left behind"


@pytest.mark.parametrize("verb", OF_THEIR_OWN)
def test_a_process_names_what_is_not_there_without_a_traceback(verb, tmp_path):
    words = [sys.executable, "-m", "verl_hpc", verb, *BAD_INPUT[verb]]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode not in (0, -1)
    told = done.stdout + done.stderr
    assert NOWHERE in told
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_help_shows_the_examples_as_they_are_written(capsys):
    with pytest.raises(SystemExit):
        main(["reshard", "--help"])
    shown = capsys.readouterr().out
    assert "examples:\n  python -m verl_hpc reshard --model DIR --train tp=4,pp=1,dp=2" in shown
    assert "--rollout tp=8 \\\n      --gpus-per-node 8 --json\n" in shown


def test_an_unknown_flag_is_bad_usage(capsys):
    """One spelling each, so that a script means the same when an option is added."""
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--node", "16"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("usage: python -m verl_hpc plan")
    assert "unrecognized arguments: --node" in said


LOGIN = """
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
print(*sorted({heavy!r} & {{name.partition('.')[0] for name in sys.modules}}))
"""


LOGIN_MODULES = (
    "cli.main cli.plan cli.plan_inputs cli.plan_text cli.reshard config.load "
    "layout.report layout.safetensors placement.balance placement.layouts planner.plan"
)


def test_the_login_nodes_half_imports_nothing_heavy():
    modules = ["verl_hpc", *(f"verl_hpc.{name}" for name in LOGIN_MODULES.split())]
    finished = python("-c", LOGIN.format(modules=modules, heavy=HEAVY))
    assert (finished.stdout, finished.stderr) == ("\n", "")


HELP = """
import sys
from verl_hpc.cli.main import main
for verb in {verbs!r}:
    heavy = {heavy!r} | ({light!r} if verb in {of_light!r} else set())
    try:
        main([verb, "--help"])
    except SystemExit:
        print("heavy:", verb, *sorted(heavy & {{n.partition(".")[0] for n in sys.modules}}))
"""
LIGHT = ["list", "logs", "report", "save", "status", "stop", "submit"]
"""Verbs whose help needs no library at all; they come first, before others have imported some."""


def test_help_of_a_verb_imports_nothing_heavy():
    verbs = sorted(VERBS, key=lambda verb: verb not in LIGHT)
    some = {"pydantic", "yaml", "rich"}
    program = HELP.format(verbs=verbs, heavy=HEAVY, light=some, of_light=LIGHT)
    finished = python("-c", program)
    told = [line for line in finished.stdout.splitlines() if line.startswith("heavy:")]
    assert told == [f"heavy: {verb}" for verb in verbs], finished.stderr


def test_the_detector_of_heavy_imports_works():
    assert python("-c", LOGIN.format(modules=["numpy"], heavy=HEAVY)).stdout == "numpy\n"


def test_overrides_may_stand_between_options(tmp_path, refuses):
    words = ["--config", "no.yaml", "seed=1", "--cluster", "c", "steps=2", "--time", "1"]
    assert "--cluster c: no such file" in refuses("submit", *words, "--nodes", "1")
