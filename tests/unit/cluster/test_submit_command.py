"""`python -m verl_hpc.submit` as a user meets it."""

import re
import subprocess
import sys

import pytest

from tests.unit.cli.status_runs import HEAVY
from tests.unit.cluster.requests import CPU_SITE, ROOT, RUN, write


@pytest.fixture
def submit(here, called):
    """Submit a run to a site, both in an empty directory, which is the working one."""
    write(here / "run.yaml", RUN)
    write(here / "site.yaml", CPU_SITE)
    files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", "2", "--time", "10"]
    return lambda *words: called("submit", *files, *words)


def test_a_dry_run_writes_nothing_and_needs_no_slurm(submit, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    status, out, err = submit("--dry-run")
    assert sorted(tmp_path.rglob("*")) == before
    assert (status, err) == (0, "")
    assert "== environment of the ranks" in out


@pytest.mark.parametrize("more", [[], ["--sweep", "seed=1,2"]])
def test_a_dry_run_looks_into_a_recipe_of_the_users_and_at_the_shell(
    submit, tmp_path, monkeypatch, more
):
    status, _, err = submit(*more, "--dry-run", "recipe=gone.py:mine")
    assert status == 1 and "gone.py does not exist here" in err
    (tmp_path / "own.py").write_text("raise ValueError\n\ndef nine(run): pass\n")
    status, _, err = submit(*more, "--dry-run", "recipe=own.py:mine")
    assert status == 1 and "defines no 'mine'; did you mean nine?" in err
    monkeypatch.setenv("SBATCH_GRES", "gpu:1")
    status, _, err = submit(*more, "--dry-run", "recipe=own.py:nine")
    assert status == 0 and "SBATCH_GRES: this shell sets what sbatch would read" in err


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
def test_a_line_break_becomes_no_line_of_the_script(submit, words, way):
    status, out, err = submit(*words, way)
    assert (status, out) == (1, "")
    assert "which a batch script cannot hold; write it in one line" in err


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
def test_a_quote_ends_no_option_of_sbatch(submit, words, name, way):
    status, out, err = submit(*words, way)
    assert (status, out) == (1, "")
    assert re.search(rf"--{name}=.* is not allowed in an #SBATCH line", err), err


NAMES = ["--account", "a1", "--partition", "p1", "--qos", "q1", "--max-restarts", "3"]


@pytest.mark.parametrize(
    ("words", "patterns"),
    [
        (["site.extra_directives=['--comment=it''s']"], [r'^#SBATCH --comment="it\'s"$']),
        (["site.extra_directives=['--comment=a b']"], ['^#SBATCH --comment="a b"$']),
        (NAMES, [rf"^#SBATCH --{name}={name[0]}1$" for name in ("account", "partition", "qos")]),
        (NAMES, [r"^account.* a1 .*\[command line\]$", r"^partition.* p1 .*\[command line\]$"]),
        (NAMES, [r"^qos.* q1 .*\[command line\]$", r'"\$\{SLURM_RESTART_COUNT:-0\}" -ge 3']),
        (["--account", "0123"], ["^#SBATCH --account=0123$"]),
        (["--resume-by", "chain", "--max-restarts", "1"], ["2 jobs are submitted"]),
        (["seed=7", "site.environment.NCCL_DEBUG=INFO"], ["export NCCL_DEBUG=INFO", "^seed +7 "]),
    ],
)
def test_words_of_a_submission_are_in_its_dry_run(submit, words, patterns):
    status, shown, _ = submit(*words, "--dry-run")
    assert status == 0
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
def test_mistakes_are_answered_in_one_line_or_two(submit, word, answer):
    status, out, err = submit("--dry-run", word)
    assert (status, out) == (1, "")
    assert answer in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 3


def python(*words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done


def test_both_ways_to_call_it():
    first = python("-m", "verl_hpc.submit", "--help").stdout
    assert first == python("-m", "verl_hpc", "submit", "--help").stdout
    for option in ("--config", "--cluster", "--nodes", "--time", "--dry-run", "--script-only"):
        assert option in first


def test_submitting_imports_nothing_heavy_but_submitit():
    program = (
        f"import sys, submitit, verl_hpc.cluster.submission\nprint(*{HEAVY!r} & set(sys.modules))"
    )
    assert python("-c", program).stdout == "submitit\n"
