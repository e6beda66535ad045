"""`python -m verl_hpc budget` as a user meets it; Slurm's programs print what is written here."""

import json

import pytest

from tests.unit.cli.status_runs import (
    NOW,
    beat,
    fake_slurm,
    make_run,
    submit_run,
    without_slurm,
    work,
)
from tests.unit.cluster.requests import SITE, write
from tests.unit.programs import program
from verl_hpc.budget.days import DAY_S
from verl_hpc.budget.page import Account, Report, render_page
from verl_hpc.cli.budget import gather, records_of
from verl_hpc.errors import ConfigError
from verl_hpc.runs.jobs import record_job
from verl_hpc.runs.lives import LifeRecord

SUBMITTED = 1_799_996_400
"""When `submit_run` says that its jobs were submitted."""


CONFIG = "AcctGatherEnergyType = acct_gather_energy/ipmi\nClusterName = lab"


def job(number, energy=""):
    """Three hours on 8 GPUs, an hour after it was submitted."""
    times = f"{SUBMITTED}|{SUBMITTED}|{SUBMITTED + 3600}|10800"
    return f"{number}|COMPLETED|{times}|2|cpu=64,gres/gpu=8,node=2|{energy}|None|1440"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A run of one job, and a cluster with accounts."""
    fake_slurm(
        tmp_path,
        monkeypatch,
        sacct=f"echo '{job(4711, 36_000_000)}'",
        sacctmgr="""
            case "$*" in
            *GrpTRESMins*) echo "lab||gres/gpu=75000" ;;
            *) echo "lab|proj" ;;
            esac""",
        sreport="echo 'proj||gres/gpu|1800000'",
        scontrol=f"echo '{CONFIG}'",
    )
    run = submit_run(tmp_path, "4711")
    work(run, 3)
    monkeypatch.chdir(tmp_path)
    return run


def test_the_page(cluster, prints):
    told = prints("budget", str(cluster))
    assert "| GPU-hours granted | used | left | from | until |" in told
    assert "| 1,250.00 | 500.00 | 750.00 | " in told
    assert f"| {cluster} | 1 | 1 | 24.00 GPU | sacct | 1.00 | - | 10 | - |" in told
    assert "Together: 24.00 GPU-hours." in told
    assert "| Priority or Resources | 1.00 |" in told
    assert "| rollout | " in told
    assert "the meter is acct_gather_energy/ipmi" in told


def test_a_report_in_a_file_with_co2(cluster, tmp_path, prints, refuses):
    site = write(tmp_path / "mine.yaml", SITE | {"budget": {"co2_g_per_kwh": 250.0}})
    words = ["budget", cluster, "--cluster", site, "--report", "use.md"]
    assert prints(*words) == "use.md\n"
    page = (tmp_path / "use.md").read_text()
    assert " | 10 | 2.5 |" in page
    assert "CO2 is 250 g for a kWh" in page
    assert "--report no/such/use.md: No such file" in refuses(*words[:-1], "no/such/use.md")


METERS = [
    ({"nvml": 3.0}, ["of the run's GPUs (NVML), counted", "CPUs and memory are not in it: RAPL"]),
    (
        {"nvml": 3.0, "rapl": 1.0},
        ["of the run's GPUs (NVML), counted", "whole nodes: on shared ones"],
    ),
    ({}, ["sacct has none, and ranks found no meter (NVML, RAPL)"]),
]


@pytest.mark.parametrize("meters, told", METERS)
def test_energy_that_ranks_measured(tmp_path, monkeypatch, meters, told, prints):
    """Nobody but the ranks has metered: three steps, of kilowatt-hours by meter."""
    run = make_run(tmp_path)
    rows = [
        {"step": step, **{f"energy_j/{name}/rollout": 3.6e6 * kwh for name, kwh in meters.items()}}
        for step in (1, 2, 3)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    without_slurm(tmp_path, monkeypatch)
    page = prints("budget", str(run))
    kwh = 3 * sum(meters.values())
    assert (f"| rollout | {kwh:g} | 100.0% |" in page) == bool(meters)
    assert ("An operator's energy has" in page) == bool(meters)
    for words in told:
        assert words in page


def test_json(cluster, prints):
    told = json.loads(prints("budget", str(cluster), "--json", "--since", "2026-10-01"))
    (run,) = told["runs"]
    assert (run["hours"], run["unit"], run["kwh"]) == (24.0, "GPU-hours", 10.0)
    assert told["account"]["name"] == "proj"


def test_each_job_is_looked_up_on_its_own_cluster(cluster, tmp_path, monkeypatch, prints):
    """Both clusters have a job 4711, and each run is charged with its own."""
    other = submit_run(tmp_path / "b")
    record_job(other / "job", {"job_id": "4711", "cluster": "c2"})
    short = job(4711).replace("|10800|", "|3600|")
    each = f'case "$*" in *--clusters=c2*) echo "{short}" ;; *) echo "{job(4711)}" ;; esac'
    log = fake_slurm(tmp_path, monkeypatch, sacct=each)
    told = json.loads(prints("budget", cluster, other, "--json"))
    assert [run["hours"] for run in told["runs"]] == [24.0, 8.0]
    assert log.read_text().count("sacct ") == 2


def test_each_runs_jobs_are_looked_up_from_its_own_first_on(cluster, tmp_path, monkeypatch, clock):
    """A run of a script that a user submitted has no list of its jobs, and may have waited for
    weeks; the job that had its number years before is another's."""
    scripted = make_run(tmp_path, "scripted")
    clock.now = SUBMITTED - 100 * DAY_S
    monkeypatch.setenv("SLURM_JOB_ID", "815")
    LifeRecord(scripted, 2, on_gpus=True, clock=clock).end("finished")
    weeks = job(815).replace(f"|{SUBMITTED}|", f"|{SUBMITTED - 120 * DAY_S:.0f}|")
    years = job(4711).replace(f"|{SUBMITTED}|", f"|{SUBMITTED - 110 * DAY_S:.0f}|")
    rows = "\n".join([years, job(4711), weeks])
    fake_slurm(tmp_path, monkeypatch, sacct=f"echo '{rows}'")
    report = gather({"new": cluster, "old": scripted, "idle": make_run(tmp_path, "idle")}, NOW)
    assert [use.hours for use in report.runs] == [24.0, 24.0, None]
    assert [use.source for use in report.runs] == ["sacct", "sacct", "nothing"]


def test_a_link_that_a_user_submitted_is_looked_up_with_those_on_the_list(
    cluster, tmp_path, monkeypatch, clock
):
    clock.now = SUBMITTED - 100 * DAY_S
    monkeypatch.setenv("SLURM_JOB_ID", "815")
    LifeRecord(cluster, 2, on_gpus=True, clock=clock).end("finished")
    older = job(815).replace(f"|{SUBMITTED}|", f"|{SUBMITTED - 101 * DAY_S:.0f}|")
    fake_slurm(tmp_path, monkeypatch, sacct=f"echo '{job(4711)}\n{older}'")
    (use,) = gather({"run": cluster}, NOW).runs
    assert (use.hours, use.starts) == (48.0, 2)


UNITS = [
    ("cpu=6000000", {"cpu": 36, "gres/gpu": 3.6}, ("core-hours", 100_000, 0.01)),
    ("cpu=6000000,gres/gpu=75000", {"cpu": 36}, ("GPU-hours", 1250, 0.0)),
    ("gres/gpu=75000", {"cpu": 36, "gres/gpu": 3.6}, ("GPU-hours", 1250, 0.001)),
    ("", {"cpu": 36, "gres/gpu": 3.6}, ("GPU-hours", None, 0.001)),
    ("", {"cpu": 36}, ("core-hours", None, 0.01)),
]


@pytest.mark.parametrize("granted, used, told", UNITS)
def test_the_unit_of_an_account_is_that_of_its_grant_and_else_of_its_use(granted, used, told):
    said = {
        "sacctmgr": f"lab||{granted}",
        "scontrol": CONFIG,
        "sreport": "\n".join(f"proj||{name}|{seconds}" for name, seconds in used.items()),
    }
    account = gather({}, NOW, "proj", run=lambda words: said[words[0]]).account
    assert (account.unit, account.granted, account.used) == told


def test_without_accounts_the_runs_own_records_tell(tmp_path, monkeypatch, clock, prints):
    run = submit_run(tmp_path, "4711")
    life = LifeRecord(run, 2, on_gpus=True, clock=clock)
    clock.now += 5400
    life.end("finished")
    without_slurm(tmp_path, monkeypatch)
    told = prints("budget", str(run))
    assert "3.00 GPU | own records | - | 0.00 | - | - |" in told
    assert "Slurm's accounts do not tell (sacct is not on PATH: " in told
    assert "hours are by the runs' own records" in told


def test_a_run_that_was_never_submitted_needs_no_slurm(tmp_path, monkeypatch, prints):
    without_slurm(tmp_path, monkeypatch)
    told = prints("budget", str(make_run(tmp_path)))
    assert "Together: no hours that anybody has recorded." in told
    assert "do not tell" not in told


def test_without_runs_the_account_alone(cluster, tmp_path, monkeypatch, prints):
    (tmp_path / "empty").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "empty")
    told = prints("budget", "--account", "proj")
    assert "## Account proj" in told
    assert "## Runs" not in told
    assert "No run is below runs/ here" in told


def site_with(tmp_path, script):
    command = program(tmp_path / "allocation", script)
    return str(write(tmp_path / "own.yaml", SITE | {"budget": {"command": [str(command)]}}))


def test_a_site_with_accounts_of_its_own(tmp_path):
    told = '{"granted_hours": 1250, "used_hours": 500, "start": "2027-01-01", "end": "2027-12-31"}'
    account = gather({}, NOW, "proj", site_with(tmp_path, f"echo '{told}'")).account
    assert (account.granted, account.used, account.source) == (1250, 500, "the site's own command")
    days = (account.end - account.start) / 86400
    assert days == pytest.approx(364, abs=0.1)


OTHER_ANSWERS = [
    ("echo no", "what it prints is no JSON"),
    ("echo '{\"granted\": 1}'", "granted"),
    ("exit 3", "exit status 3"),
    ("", "Exec format error.*#!/bin/sh"),
    ('echo \'{"start": "2027-13-01"}\'', "expected a date"),
]


@pytest.mark.parametrize("script, problem", OTHER_ANSWERS)
def test_a_site_command_that_says_something_else(tmp_path, script, problem):
    site = site_with(tmp_path, script)
    if not script:
        (tmp_path / "allocation").write_text("echo {}\n")  # the kernel does not start it
    with pytest.raises(ConfigError, match=r"budget.command = (.|\n)*" + problem):
        gather({}, NOW, "proj", site)


def test_steps_that_nobody_saved_are_lost_unless_the_run_goes_on_or_has_saved(tmp_path, clock):
    run = make_run(tmp_path)
    life = LifeRecord(run, 2, on_gpus=True, clock=clock)
    work(run, 3)
    (run / "checkpoints/step_00000001").mkdir(parents=True)
    (run / "checkpoints/step_00000001/manifest.json").touch()
    assert records_of("run", run, NOW).unsaved_s == 20.0
    beat(run, at=NOW)
    assert records_of("run", run, NOW + 1).unsaved_s is None
    life.end("finished")
    assert records_of("run", run, NOW + 1e6).unsaved_s == 0.0


def test_hours_last_until_a_day_of_the_calendar_if_they_are_used_as_until_now():
    for used, until in ((250.0, 400.0), (0.0, None)):
        account = Account("a", "GPU-hours", 1000.0, used, 0.0, None, "x")
        assert account.runs_out(100.0) == until
    # One short job in a year: the hours would last for millions of years.
    account = Account("a", "GPU-hours", 75_000.0, 0.01, NOW - 300 * DAY_S, None, "x")
    assert "last until" not in render_page(Report(NOW, account, [], None, "", []))


def test_a_date_that_is_none(cluster, refuses):
    for day, told in (
        ("January", "expected a date such as 2027-01-31"),
        ("9999-12-30", "that day has not begun"),
    ):
        assert f"--since {day}: {told}" in refuses("budget", cluster, "--since", day)
