"""`python -m verl_hpc doctor` as a user meets it, where there is no Slurm."""

import json
import sys

import pytest

from tests.unit.cli.status_runs import heavy_imports
from tests.unit.cluster.requests import CPU_SITE, RUN, write
from verl_hpc.cli.main import main
from verl_hpc.cluster.excluded import exclude, exclude_list
from verl_hpc.cluster.profile import load_profile
from verl_hpc.runs.verdict import fails, ok, to_data


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory with a site and a run, no Slurm on PATH, and a list of its own."""
    write(tmp_path / "site.yaml", CPU_SITE | {"python": sys.executable})
    write(tmp_path / "run.yaml", RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def doctor(*words):
    return main(["doctor", *words])


def states(output):
    return {line.split()[1]: line.split()[0] for line in output.splitlines()}


def test_without_a_site_it_looks_for_slurm(capsys):
    assert doctor() == 1
    shown = capsys.readouterr().out
    assert shown.startswith("fails    slurm          not on PATH: sbatch, ")
    assert len(shown.splitlines()) == 1


def test_a_site(capsys):
    assert doctor("--cluster", "site.yaml") == 1
    good = dict.fromkeys(("container", "python", "run", "excluded", "expected"), "ok")
    assert states(capsys.readouterr().out) == {"slurm": "fails"} | good


def test_what_nodes_are_held_to_and_who_says_so(here, capsys):
    write(here / "site.yaml", CPU_SITE | {"preflight": {"min_bandwidth_gb_s": 12.5}})
    doctor("--cluster", "site.yaml", "site.preflight.max_clock_skew_s=0.5")
    shown = capsys.readouterr().out
    assert "min_bandwidth_gb_s 12.5 [site], min_write_gb_s null [default], " in shown
    assert "max_clock_skew_s 0.5 [command line]" in shown


def test_a_run(capsys):
    assert doctor("--cluster", "site.yaml", "--config", "run.yaml", "model.path=m") == 1
    shown = capsys.readouterr().out
    assert "fails    model.path" in shown
    assert "/m does not exist" in shown
    assert "ok       layout" in shown


LAYOUTS = {
    ("tensor_parallel=4",): "ok       layout         the run can be laid out on 2 x 2",
    ("data_parallel=7",): "unknown  layout         --nodes 1 x 2 ranks = 2: parallel.d",
    ("tensor_parallel=4", "--nodes", "1"): "fails    layout         --nodes 1 x 2 r",
}


@pytest.mark.parametrize(("words", "told"), LAYOUTS.items(), ids=["fewest", "none tried", "one"])
def test_on_how_many_nodes_a_run_can_be_laid_out(words, told, capsys):
    first, *rest = words
    given = ("--cluster", "site.yaml", "--config", "run.yaml", f"parallel.{first}", *rest)
    assert doctor(*given) == 1
    assert f"\n{told}" in capsys.readouterr().out


def test_json(capsys):
    assert doctor("--cluster", "site.yaml", "--json") == 1
    tree = json.loads(capsys.readouterr().out)
    assert tree["ok"] is False
    assert (tree["verdicts"][0]["check"], tree["verdicts"][0]["state"]) == ("slurm", "fails")
    assert tree["failing_nodes"] == []


def test_nothing_is_submitted_while_something_fails(here, capsys):
    assert doctor("--cluster", "site.yaml", "--nodes", "2") == 1
    assert "no job is submitted before these are right" in capsys.readouterr().err
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
def test_bad_input(words, text, capsys):
    assert doctor(*words) == 1
    shown = capsys.readouterr()
    assert "Error: " in shown.err
    assert text in shown.err


def test_the_list(capsys, prints):
    site = load_profile("site.yaml").site
    assert prints("doctor", "--excluded").endswith("excluded_nodes.json: no nodes left out\n")
    exclude(exclude_list(site), site, [("n3", "pairs: slow"), ("n4", "clocks: off")])
    shown = prints("doctor", "--excluded", "--cluster", "site.yaml")
    assert "excluded_nodes.json: 2 nodes left out" in shown
    assert "  n3 of here until 20" in shown
    assert "1 node left out" in prints("doctor", "--forget", "n3")
    assert doctor("--excluded", "--json") == 0
    assert [n["node"] for n in json.loads(capsys.readouterr().out)["nodes"]] == ["n4"]


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
    job.mkdir(parents=True)
    write(job / "site.yaml", CPU_SITE)
    (job / "preflight-7.json").write_text(json.dumps({"verdicts": to_data(verdicts)}))


def test_an_earlier_jobs_result(here, capsys, prints):
    leave_result(here, ok("ranks", "fine"), fails("pairs", "slow", "leave out n1", ["n1"]))
    assert doctor("--result", "runs/doctor") == 1
    shown = capsys.readouterr()
    assert states(shown.out) == {"ranks": "ok", "pairs": "fails"}
    assert "n1 is left out of submissions until" in shown.err
    assert "  n1 of here until" in prints("doctor", "--excluded")


def test_an_earlier_result_that_is_good(here, capsys):
    leave_result(here, ok("ranks", "fine"))
    assert doctor("--result", "runs/doctor") == 0
    assert not (here / "settings").exists()


def test_the_login_node_imports_nothing_heavy(here):
    words = ["doctor", "--cluster", "site.yaml", "--config", "run.yaml"]
    assert heavy_imports(words, here) == ""
