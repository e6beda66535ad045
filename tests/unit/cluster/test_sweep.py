"""A sweep: which runs there are, the array's script, and what it leaves."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from tests.unit.cluster.requests import CPU_SITE, RUN, request, write
from tests.unit.cluster.shellcheck import shellcheck
from tests.unit.cluster.test_submission import cluster  # noqa: F401 (a fixture)
from tests.unit.programs import program, umask
from verl_hpc.cli.main import main
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.sweep import combinations, plan_sweep
from verl_hpc.errors import ConfigError
from verl_hpc.runs.find import runs_below
from verl_hpc.runs.jobs import read_jobs

SWEEP = ["--sweep", "optimizer.lr=1e-6,3e-6", "--sweep", "seed=4,5"]
NO_COPY = "site.code=installed"


@pytest.fixture
def submit(here):
    write(here / "run.yaml", RUN)
    write(here / "site.yaml", CPU_SITE)
    files = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", "2", "--time", "10"]
    return lambda *words: main(["submit", *files, *words])


@pytest.mark.parametrize(
    "sweeps, complaint",
    [
        (["lr"], "expected field=value"),
        (["lr="], "expected field=value"),
        (["lr=1,,2"], "expected field=value"),
        (["=1,2"], "expected field=value"),
        (["lr=1,1"], "each of its values once"),
        (["lr=1", "lr=2"], "each field once"),
        (["name=a,b"], "the same for all runs"),
        (["site.memory=1G,2G"], "the same for all runs"),
        ([f"{field}={','.join(map(str, range(40)))}" for field in ("seed", "steps")], "1600"),
    ],
)
def test_words_that_are_no_sweep(sweeps, complaint):
    pairs = [(a, c) for a in ("a.b=1", "a.b=2") for c in ("c=x", "c=y")]
    assert combinations(["a.b=1,2", "c=x, y"]) == pairs, "every combination once"
    with pytest.raises(ConfigError, match=complaint):
        combinations(sweeps)


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--sweep", "optimizer.rl=1,2"], "did you mean lr"),
        (["--sweep", "optimizer.lr=1,-2"], "optimizer.lr = -2"),
        ([*SWEEP, "--at-once", "0"], "at least 1"),
        ([*SWEEP, "--resume-by", "chain"], "restarts by requeue"),
        ([*SWEEP, "--script-only"], "calls those of its runs"),
        (["--at-once", "2"], "belongs to --sweep"),
    ],
)
def test_what_cannot_be_submitted(submit, words, complaint, capsys):
    assert submit("--dry-run", *words) == 1
    assert complaint in capsys.readouterr().err


def test_a_dry_run(submit, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert submit("--dry-run", *SWEEP, "--at-once", "3") == 0
    shown = capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before
    assert "#SBATCH --array=0-3%3\n" in shown
    assert "   2  optimizer.lr=3e-6 seed=4\n" in shown
    assert "--sweep optimizer.lr=1e-6,3e-6" in shown


def test_runs_are_runs_like_any_other(submit, cluster, tmp_path, monkeypatch):  # noqa: F811
    ask_squeue(cluster)
    assert submit(*SWEEP) == 0
    sweep = tmp_path / "runs/run"
    assert [path.name for path in runs_below(tmp_path / "runs")] == ["0", "1", "2", "3"]
    jobs = [read_jobs(sweep / name / "job")[0]["job_id"] for name in "012"]
    assert jobs == ["41_0", "41_1", "41_2"]
    assert "lr: 3.0e-06" in (sweep / "2/job/config.yaml").read_text()
    last = json.loads((sweep / "sweep.json").read_text())[3]
    assert last == {"run": "3", "given": ["optimizer.lr=3e-6", "seed=5"]}
    script = (cluster / "script.41").read_text()
    assert script == (sweep / "sweep.sbatch").read_text()
    assert f"#SBATCH --output={sweep}/%a/job/slurm-%A_%a.log\n" in script
    assert shellcheck(sweep / "sweep.sbatch") == ""


def run_of(sweep, index, **variables):
    """Status and output of one run of the array."""
    variables = os.environ | {"SLURM_ARRAY_TASK_ID": str(index)} | variables
    command = ["bash", sweep / "sweep.sbatch"]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def ask_squeue(lab, text=""):
    """A squeue on PATH that prints a text and counts its calls."""
    program(lab / "squeue", f"echo asked >>$LAB/asked\nprintf '{text}'")


def directories(place):
    return sorted(str(path) for path in place.rglob("*") if path.is_dir())


def test_the_directory_of_a_run_is_not_taken(submit, cluster, tmp_path, capsys):  # noqa: F811
    job = tmp_path / "runs/run/job"
    job.mkdir(parents=True)
    (job / "job.sbatch").touch()
    assert submit(*SWEEP) == 1
    assert "is the directory of a single run; choose another" in capsys.readouterr().err


def test_slurm_is_asked_once_for_all_runs(submit, cluster):  # noqa: F811
    ask_squeue(cluster)
    assert submit(*SWEEP, NO_COPY) == 0
    assert not (cluster / "asked").exists()
    assert submit(*SWEEP, NO_COPY) == 0
    assert (cluster / "asked").read_text().count("asked") == 1


@pytest.mark.parametrize("why", ["sbatch refuses", "a run is in the queue", "a model is missing"])
def test_a_sweep_that_is_refused_leaves_nothing(submit, cluster, tmp_path, monkeypatch, why):  # noqa: F811
    ask_squeue(cluster)
    assert submit("--sweep", "seed=4,5", NO_COPY) == 0
    before = directories(tmp_path / "runs")
    words = ["--sweep", "seed=4,5,6,7"]
    if why == "sbatch refuses":
        monkeypatch.setenv("REFUSES", "invalid partition specified: x")
    elif why == "a run is in the queue":
        ask_squeue(cluster, "41_1|PENDING|/elsewhere\\n")
    else:
        words = ["--sweep", "model.path=model,nowhere"]
    assert submit(*words, NO_COPY) == 1
    assert directories(tmp_path / "runs") == before
    if why != "a run is in the queue":  # a sweep that is new has none
        assert submit(*words, NO_COPY, "name=new") == 1
        assert directories(tmp_path / "runs") == before


@pytest.mark.parametrize(("login", "site"), [(0o077, "027"), (0o022, "077")])
def test_who_may_read_a_sweep(submit, cluster, tmp_path, login, site):  # noqa: F811
    with umask(login):
        assert submit(*SWEEP, NO_COPY, f'site.umask="{site}"') == 0
    sweep = tmp_path / "runs/run"
    for path in (sweep, *(path for path in sweep.rglob("*") if not path.is_symlink())):
        full = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == full & ~int(site, 8), path


def test_a_login_shell_runs_each_run(submit, cluster, tmp_path):  # noqa: F811
    assert submit(*SWEEP, NO_COPY, "site.login_shell=true") == 0
    sweep = tmp_path / "runs/run"
    assert shellcheck(sweep / "sweep.sbatch") == ""
    (tmp_path / ".bash_profile").write_text("module() { echo module $*; }\n")
    (sweep / "0/job/job.sbatch").write_text("module load mpi\n")
    assert run_of(sweep, 0, HOME=str(tmp_path)) == (0, "module load mpi\n")


def test_a_variant_that_is_swept_takes_nothing_of_the_files(submit, tmp_path, caplog):
    loss = {"algorithm": {"loss": {"clip_high": 0.28}}}
    asked = request(tmp_path, site=load_profile(tmp_path / "site.yaml"), run=loss)
    base = replace(asked, config_path=str(tmp_path / "run.yaml"))
    runs = plan_sweep(base, ["algorithm.loss.name=ppo_clip,gspo"], None).runs
    assert [run.job.request.config.algorithm.loss.clip_high for run in runs] == [0.28, 4e-4]
    assert "dropped with it: algorithm.loss.clip_high" in caplog.text
