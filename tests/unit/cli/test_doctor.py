"""`python -m verl_hpc doctor` as a user meets it, where there is no Slurm."""

import json
import sys

import pytest

from tests.unit.cli.status_runs import heavy_imports
from tests.unit.cluster.requests import CPU_SITE, RUN, write
from verl_hpc.cluster.excluded import exclude, exclude_list
from verl_hpc.cluster.profile import load_profile
from verl_hpc.runs import verdict


@pytest.fixture(autouse=True)
def here(here, monkeypatch):
    """A directory with a site and a run, no Slurm on PATH, and a list of its own."""
    write(here / "site.yaml", CPU_SITE | {"python": sys.executable})
    write(here / "run.yaml", RUN)
    monkeypatch.setenv("PATH", str(here / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "settings"))
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return here


@pytest.fixture
def fails(called):
    """Call `doctor`, which must find fault; gives its standard output."""

    def fails(*words):
        status, out, _ = called("doctor", *words)
        assert status == 1
        return out

    return fails


def states(output):
    return {line.split()[1]: line.split()[0] for line in output.splitlines()}


def test_without_a_site_it_looks_for_slurm(fails):
    shown = fails()
    assert shown.startswith("fails    slurm          not on PATH: sbatch, ")
    assert len(shown.splitlines()) == 1


def test_a_site(fails):
    good = dict.fromkeys(("container", "python", "run", "excluded", "expected"), "ok")
    assert states(fails("--cluster", "site.yaml")) == {"slurm": "fails"} | good
    tree = json.loads(fails("--cluster", "site.yaml", "--json"))
    assert (tree["ok"], tree["failing_nodes"]) == (False, [])
    assert (tree["verdicts"][0]["check"], tree["verdicts"][0]["state"]) == ("slurm", "fails")


def test_what_nodes_are_held_to_and_who_says_so(here, fails):
    write(here / "site.yaml", CPU_SITE | {"preflight": {"min_bandwidth_gb_s": 12.5}})
    shown = fails("--cluster", "site.yaml", "site.preflight.max_clock_skew_s=0.5")
    assert "min_bandwidth_gb_s 12.5 [site], min_write_gb_s null [default], " in shown
    assert "max_clock_skew_s 0.5 [command line]" in shown


def test_a_run(fails):
    shown = fails("--cluster", "site.yaml", "--config", "run.yaml", "model.path=m")
    assert "fails    model.path" in shown
    assert "/m does not exist" in shown
    assert "ok       layout" in shown


LAYOUTS = {
    ("tensor_parallel=4",): "ok       layout         the run can be laid out on 2 x 2",
    ("data_parallel=7",): "unknown  layout         --nodes 1 x 2 ranks = 2: parallel.d",
    ("tensor_parallel=4", "--nodes", "1"): "fails    layout         --nodes 1 x 2 r",
}


@pytest.mark.parametrize(("words", "told"), LAYOUTS.items(), ids=["fewest", "none tried", "one"])
def test_on_how_many_nodes_a_run_can_be_laid_out(words, told, fails):
    first, *rest = words
    given = ("--cluster", "site.yaml", "--config", "run.yaml", f"parallel.{first}", *rest)
    assert f"\n{told}" in fails(*given)


def test_nothing_is_submitted_while_something_fails(here, refuses):
    told = refuses("doctor", "--cluster", "site.yaml", "--nodes", "2")
    assert "no job is submitted before these are right" in told
    assert not (here / "runs").exists()


BAD_INPUT = [
    (["--nodes", "2"], "--nodes needs --cluster"),
    (["site.mpi=pmix"], "site.mpi=pmix needs --cluster"),
    (["--cluster", "none.yaml"], "--cluster none.yaml: no such file"),
    (["--cluster", "site.yaml", "seed=3"], "'seed=3' is one of a run: give --config"),
    (["--cluster", "site.yaml", "site.preflight.min_bandwith=3"], "did you mean"),
    (["--cluster", "site.yaml", "site.preflight.exclude_days=0"], "exclude_days = 0"),
    (["--cluster", "site.yaml", "--nodes", "0"], "--nodes 0: from 1 to 65533"),
    (["--cluster", "site.yaml", "--nodes", "1", "--time", "soon"], "--time 'soon'"),
    (["--result", "nowhere"], "--result nowhere: no result there"),
    (["--forget", "n3"], "--forget n3: not on the list"),
]


@pytest.mark.parametrize("words, text", BAD_INPUT)
def test_bad_input(words, text, refuses):
    told = refuses("doctor", *words)
    assert "Error: " in told and text in told


def test_the_list(prints):
    site = load_profile("site.yaml").site
    assert prints("doctor", "--excluded").endswith("excluded_nodes.json: no nodes left out\n")
    exclude(exclude_list(site), site, [("n3", "pairs: slow"), ("n4", "clocks: off")])
    shown = prints("doctor", "--excluded", "--cluster", "site.yaml")
    assert "excluded_nodes.json: 2 nodes left out" in shown
    assert "  n3 of here until 20" in shown
    assert "1 node left out" in prints("doctor", "--forget", "n3")
    left = json.loads(prints("doctor", "--excluded", "--json"))["nodes"]
    assert [entry["node"] for entry in left] == ["n4"]


def test_a_submission_leaves_out_what_is_on_the_list(prints):
    words = ["--config", "run.yaml", "--cluster", "site.yaml", "--nodes", "2", "--time", "10"]
    site = load_profile("site.yaml").site
    assert "exclude" not in prints("submit", *words, "--dry-run")
    exclude(exclude_list(site), site, [("n3", "pairs: slow")])
    shown = prints("submit", *words, "--dry-run")
    assert "\n#SBATCH --exclude=n3\n" in shown
    row = next(line for line in shown.splitlines() if line.startswith("exclude "))
    assert row.endswith(f"[{exclude_list(site)}]")
    assert "exclude" not in prints("submit", *words, "--script-only")


def leave_result(directory, *verdicts):
    job = directory / "runs/doctor/job"
    job.mkdir(parents=True, exist_ok=True)
    write(job / "site.yaml", CPU_SITE)
    (job / "preflight-7.json").write_text(json.dumps({"verdicts": verdict.to_data(verdicts)}))


def test_an_earlier_jobs_result(here, called, prints):
    leave_result(here, verdict.ok("ranks", "fine"))
    prints("doctor", "--result", "runs/doctor")
    assert not (here / "settings").exists()
    slow = verdict.fails("pairs", "slow", "leave out n1", ["n1"])
    leave_result(here, verdict.ok("ranks", "fine"), slow)
    status, out, err = called("doctor", "--result", "runs/doctor")
    assert (status, states(out)) == (1, {"ranks": "ok", "pairs": "fails"})
    assert "n1 is left out of submissions until" in err
    assert "  n1 of here until" in prints("doctor", "--excluded")


def test_the_login_node_imports_nothing_heavy(here):
    words = ["doctor", "--cluster", "site.yaml", "--config", "run.yaml"]
    assert heavy_imports(words, here) == ""
