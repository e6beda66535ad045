"""What `budget` says of real jobs, beside what Slurm's accounts and the meters of its nodes say.

Thirty runs of a fleet, up to eight at a time, and a few alone, of which more is asked. The nodes
have GPUs for Slurm to hand out, ranks on CPUs, and meters that a thread turns.
"""

import json
import os
import signal
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.slurm.conftest import REQUIRED
from tests.slurm.fleet import CEILING, STARTS, Fleet, Table
from tests.slurm.runs import Run, set_pause, write_run
from verl_hpc.cli.main import main
from verl_hpc.runs.lives import read_lives
from verl_hpc.testing.slurm_lab import Lab, LabSettings, missing
from verl_hpc.testing.slurm_lab.accounting import ACCOUNT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
WATTS = 300
GPUS = 2
WITH_GPUS = f"site.gpus_per_node={GPUS}", "site.tasks_per_node=1", "runtime.device=cpu"


@pytest.fixture(scope="module")
def lab(slurm, submitter):
    """Eight nodes that keep accounts."""
    if (reason := missing(accounts=True)) is not None:
        assert os.environ.get(REQUIRED) != "1", reason
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm_lab-") as directory:
        sizes = {"nodes": 8, "gpus": GPUS, "accounting": True, "kill_wait_s": 6}
        settings = LabSettings(directory=Path(directory), **sizes, **submitter)
        with Lab(settings) as running, metered(running):
            yield running


class metered:  # noqa: N801
    """The nodes draw WATTS each, whatever they do."""

    def __init__(self, lab):
        self.lab, self.over, self.began = lab, threading.Event(), time.time()
        self.thread = threading.Thread(target=self.turn, daemon=True)

    def turn(self):
        while not self.over.wait(0.1):
            for name in self.lab.settings.node_names:
                self.lab.set_meter(name, int(WATTS * (time.time() - self.began)))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@pytest.fixture
def budget(lab, monkeypatch, capsys):
    """The verb's JSON about runs."""
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)

    def call(*runs):
        capsys.readouterr()
        assert main(["budget", *map(str, runs), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def fleet(lab, model, tmp_path):
    yield Fleet(lab, model, tmp_path, WITH_GPUS)
    lab.run("scancel", "--me")
    lab.mend()


def accounted(lab, *jobs):
    """Seconds of every start of jobs, by when Slurm says that it began and ended."""
    words = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-n", "-P", "-D", "-X"]
    words += ["--format=Start,End", "-j", ",".join(jobs)]
    rows = [row.split("|") for row in lab.run(*words).splitlines()]
    return [float(end) - float(start) for start, end in rows]


def settled(lab, *jobs):
    """Accounts are a second or two behind."""
    lab.run("sacct")
    time.sleep(3)
    return accounted(lab, *jobs)


def write_figures(name, run, seconds):
    """For people who read what `pytest -s` prints."""
    own = sum(life.hours for life in read_lives(run.directory)) if run is not None else 0
    print(f"\n{name}: sacct {seconds} s; own records {own * 3600:.1f} GPU-seconds")


def test_a_killed_run_and_what_it_lost(lab, run, budget):
    run.submit(*WITH_GPUS, "checkpoint.every=2", nodes=2)
    run.wait_for_step(3)
    os.kill(run.ranks()[1], signal.SIGKILL)
    assert run.wait_for_end() == "FAILED"
    first = run.job
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").open()]
    run.submit(*WITH_GPUS, "checkpoint.every=2", nodes=2)
    run.finish()
    run.wait_until_gone()
    seconds = settled(lab, first, run.job)
    (use,) = budget(run.directory)["runs"]
    assert len(seconds) == use["starts"] == use["jobs"] == 2
    assert (use["unit"], use["source"]) == ("GPU-hours", "sacct")
    assert use["hours"] == pytest.approx(2 * GPUS * sum(seconds) / 3600, rel=0.01)
    first_life, second_life = read_lives(run.directory)
    saved = second_life.from_step
    redone = sum(row["timing_s/step"] for row in rows if row["step"] > saved)
    assert redone > 0
    assert use["lost_s"] == pytest.approx(redone + first_life.unfinished_s, abs=0.01)
    own = first_life.hours + second_life.hours
    assert own == pytest.approx(use["hours"], abs=2 * 2 * GPUS * 13 / 3600)
    write_figures("killed", run, seconds)


def test_thirty_runs_and_what_becomes_of_them(fleet, budget):
    """An array, kills, lost nodes, requeues, chains and ceilings, up to eight runs at a time."""
    fleet.submit()
    fleet.strike()
    fleet.finish()
    check_fleet(fleet, budget(*fleet.directories.values())["runs"])


def check_fleet(fleet, uses):
    """What `budget` says of each run, beside sacct's starts and ends, and the meters."""
    table, checked = Table(), []
    for kind, use in zip(fleet.kinds, uses, strict=True):
        seconds = accounted(fleet.lab, *fleet.jobs[use["run"]])
        own = sum(life.hours for life in read_lives(fleet.directories[use["run"]]))
        table.add(kind, use, GPUS * sum(seconds), 3600 * own, WATTS * sum(seconds))
        checked.append((kind, use, seconds))
    print(table)
    assert table.sums["runs"] == 30
    for kind, use, seconds in checked:
        assert (use["unit"], use["source"]) == ("GPU-hours", "sacct")
        assert use["starts"] == len(seconds) == STARTS[kind], use
        assert 3600 * use["hours"] == pytest.approx(GPUS * sum(seconds), rel=0.01), use
        if kind != "cancelled":  # it may have had the time to save, and may not
            assert (use["lost_s"] > 0) == (kind in ("rank killed", "node lost")), use
        if kind == "ceiling":
            step_s = max(row["timing_s/step"] for row in fleet.rows(use["run"]))
            most = 3600 * CEILING + GPUS * step_s
            assert 3600 * use["hours"] <= most, "passed by more than one step"
        if kind == "requeued":
            assert use["wait_s_by_reason"]["BeginTime"] >= 5
        if kind == "chain":
            assert use["wait_s_by_reason"]["Dependency"] >= seconds[0] - 5
    assert table.sums["metered J"] == pytest.approx(table.sums["turned J"], rel=0.01)


def test_a_run_stops_before_it_passes_its_hours_and_starts_no_more(lab, run, budget):
    """Each of two ranks has two GPUs: a tenth of an hour is 90 s."""
    set_pause(run.config.parent, 0.5)
    run.submit(*WITH_GPUS, "runtime.max_gpu_hours=0.1", "steps=500", nodes=2)
    assert run.wait_for_end() == "COMPLETED"
    run.wait_until_gone()
    assert "would pass runtime.max_gpu_hours" in run.rank_logs
    assert run.steps_done == run.checkpoints[-1] < 500
    seconds = settled(lab, run.job)
    (use,) = budget(run.directory)["runs"]
    assert use["hours"] <= 0.1, "it was to stop before"
    write_figures("ceiling 360 GPU-seconds", run, seconds)
    again = run.directory / "job/attempts"
    before = len(list(again.glob("[0-9]*")))
    run.submit(*WITH_GPUS, "runtime.max_gpu_hours=0.03", "steps=500", nodes=2)
    assert run.wait_for_end() == "FAILED"
    assert len(list(again.glob("[0-9]*"))) == before + 1
    assert "set it higher to go on" in run.rank_logs


def test_what_another_cluster_of_the_database_grants_is_not_granted_here(
    lab, budget, tmp_path, monkeypatch
):
    """Its name comes first in what sacctmgr shows, and nobody has named a cluster."""
    tell = partial(lab.run, "sacctmgr", "--immediate")
    tell("add", "cluster", "a_first")
    tell("add", "account", ACCOUNT, "cluster=a_first")
    for cluster, minutes in (("a_first", 6_000_000), ("lab", 75_000)):
        where = "where", f"name={ACCOUNT}", f"cluster={cluster}"
        tell("modify", "account", *where, "set", f"GrpTRESMins=cpu={minutes}")
    try:
        monkeypatch.chdir(tmp_path)
        account = budget()["account"]
        assert (account["unit"], account["granted"]) == ("core-hours", 1250.0)
    finally:
        tell("modify", "account", *where, "set", "GrpTRESMins=cpu=-1")
        tell("delete", "cluster", "a_first")


def test_energy_is_what_the_meters_counted(lab, model, tmp_path, budget):
    """A job of a minute, which a run's records name as its own."""
    config = write_run(tmp_path, model)
    run = Run(lab, config)
    (run.directory / "job").mkdir(parents=True)
    (run.directory / "config.yaml").write_text(config.read_text())
    words = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=2", f"--gpus-per-node={GPUS}"]
    run.job = lab.run(*words, "--wrap=srun sleep 90").strip()
    (run.directory / "job/submitted.jsonl").write_text(json.dumps({"job_id": run.job}) + "\n")
    assert run.wait_for_end() == "COMPLETED"
    (seconds,) = settled(lab, run.job)
    report = budget(run.directory)
    (use,) = report["runs"]
    assert report["meter"] == "acct_gather_energy/pm_counters"
    assert use["kwh"] == pytest.approx(2 * WATTS * seconds / 3.6e6, rel=0.01)
    print(f"\nenergy: {use['kwh'] * 3.6e6:.0f} J of {2 * WATTS * seconds:.0f} J")
