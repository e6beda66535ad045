"""`python -m verl_hpc.submit` as a user meets it."""

import re
import subprocess
import sys

import pytest

from tests.unit.cluster.requests import CPU_SITE, ROOT, RUN, write
from verl_hpc.cli.main import main

HEAVY = ("torch", "numpy", "mpi4py", "h5py", "vllm", "megatron", "transformers", "submitit")
SUBMIT = ["--nodes", "2", "--time", "10"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Words that name a run and a site in an empty directory, which is the working one."""
    write(tmp_path / "run.yaml", RUN)
    write(tmp_path / "site.yaml", CPU_SITE)
    monkeypatch.chdir(tmp_path)
    return ["--config", "run.yaml", "--cluster", "site.yaml", *SUBMIT]


def submit(*words):
    return main(["submit", *words])


def test_a_dry_run_writes_nothing_and_needs_no_slurm(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert submit(*files, "--dry-run") == 0
    assert sorted(tmp_path.rglob("*")) == before
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "== environment of the ranks" in shown.out


@pytest.mark.parametrize("more", [[], ["--sweep", "seed=1,2"]])
def test_a_dry_run_looks_into_a_recipe_of_the_users(files, tmp_path, capsys, more):
    assert submit(*files, *more, "--dry-run", "recipe=gone.py:mine") == 1
    assert "gone.py does not exist here" in capsys.readouterr().err
    (tmp_path / "own.py").write_text("raise ValueError\n\ndef nine(run): pass\n")
    assert submit(*files, *more, "--dry-run", "recipe=own.py:mine") == 1
    assert "defines no 'mine'; did you mean nine?" in capsys.readouterr().err
    assert submit(*files, *more, "--dry-run", "recipe=own.py:nine") == 0


@pytest.mark.parametrize("more", [[], ["--sweep", "seed=1,2"]])
def test_a_dry_run_tells_which_options_of_the_shell_are_not_used(files, monkeypatch, capsys, more):
    monkeypatch.setenv("SBATCH_GRES", "gpu:1")
    assert submit(*files, *more, "--dry-run") == 0
    assert "SBATCH_GRES: this shell sets what sbatch would read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--account", "a\ntouch x"],
        ['site.memory="9G\ntouch x"'],
        ['site.name="n\ntouch x"'],
        ["reward.function=a\ntouch x:b"],
        ["--sweep", "seed=1,2\ntouch x"],
        ["optimizer.lr=1e-6\rtouch x"],
    ],
)
@pytest.mark.parametrize("way", ["--dry-run", "--script-only"])
def test_a_line_break_becomes_no_line_of_the_script(files, capsys, words, way):
    assert submit(*files, *words, way) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "which a batch script cannot hold; write it in one line" in shown.err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--account", 'a"--uid=0'], "account"),
        (["--partition", 'p"q'], "partition"),
        (["site.qos='q\"r'"], "qos"),
        (["site.memory='9\\'"], "mem"),
        (["site.extra_directives=['--comment=a\" --uid=0']"], "comment"),
    ],
)
@pytest.mark.parametrize("way", ["--dry-run", "--script-only"])
def test_a_quote_ends_no_option_of_sbatch(files, capsys, words, name, way):
    assert submit(*files, *words, way) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(rf"--{name}=.* is not allowed in an #SBATCH line", shown.err), shown.err


NAMES = ["--account", "a1", "--partition", "p1", "--qos", "q1", "--max-restarts", "3"]


@pytest.mark.parametrize(
    ("words", "patterns"),
    [
        (["site.extra_directives=['--comment=it''s']"], [r'^#SBATCH --comment="it\'s"$']),
        (NAMES, [rf"^#SBATCH --{name}={name[0]}1$" for name in ("account", "partition", "qos")]),
        (NAMES, [r"^account.* a1 .*\[command line\]$", r"^partition.* p1 .*\[command line\]$"]),
        (NAMES, [r"^qos.* q1 .*\[command line\]$", r'"\$\{SLURM_RESTART_COUNT:-0\}" -ge 3']),
        (["--account", "0123"], ["^#SBATCH --account=0123$"]),
        (["--resume-by", "chain", "--max-restarts", "1"], ["2 jobs are submitted"]),
        (["seed=7", "site.environment.NCCL_DEBUG=INFO"], ["export NCCL_DEBUG=INFO", "^seed +7 "]),
    ],
)
def test_words_of_a_submission_are_in_its_dry_run(files, capsys, words, patterns):
    assert submit(*files, *words, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert [pattern for pattern in patterns if not re.search(pattern, shown, re.M)] == []


@pytest.mark.parametrize(
    "word, answer",
    [
        ("optimizer.lrr=1", "did you mean lr"),
        ("sed=1", "did you mean seed"),
        ("site.partitoin=x", "did you mean partition"),
        ("site.mpi=--mpi", "mpi = '--mpi'"),
        ("seed", "expected section.field=value"),
        ("site.mpi", "expected site.field=value"),
        ("parallel.tensor_parallel=3", "does not divide"),
        ("--time=soon", "--time 'soon'"),
        ("--time=0", "--time '0'"),
        ("--config=gone.yaml", "gone.yaml"),
    ],
)
def test_mistakes_are_answered_in_one_line_or_two(files, capsys, word, answer):
    assert submit(*files, "--dry-run", word) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert answer in shown.err
    assert "Traceback" not in shown.err
    assert len(shown.err.splitlines()) <= 3


def python(*words, cwd=ROOT):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def test_both_ways_to_call_it():
    first = python("-m", "verl_hpc.submit", "--help").stdout
    assert first == python("-m", "verl_hpc", "submit", "--help").stdout
    for option in ("--config", "--cluster", "--nodes", "--time", "--dry-run", "--script-only"):
        assert option in first


def imported(*words):
    """Names of the modules that a command imports."""
    done = python("-X", "importtime", "-m", "verl_hpc.submit", *words)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_a_login_node_imports_nothing_heavy():
    names = imported(
        "--config", "configs/run/ppo_70b.yaml", "--cluster", "slurm/h100_infiniband_pyxis.yaml",
        "--nodes", "16", "--time", "24:00:00", "--dry-run",
    )  # fmt: skip
    assert "pydantic" in names
    assert not {name for name in names if name.split(".")[0] in HEAVY}


def test_help_imports_next_to_nothing():
    names = imported("--help")
    assert not {name for name in names if name.split(".")[0] in (*HEAVY, "pydantic", "yaml")}


def test_submitting_imports_nothing_heavy_but_submitit():
    program = (
        "import sys, submitit, verl_hpc.cluster.submission\n"
        f"print(sorted(set({HEAVY[:-1]!r}) & set(sys.modules)))"
    )
    assert python("-c", program).stdout == "[]\n"
