"""`list`: one line a run."""

import os
import time

import pytest

from tests.unit.cli.status_runs import beat, fake_slurm, make_run, submit_run, without_slurm, work
from verl_hpc.cli.main import main

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def lines(prints):
    """Words of each line that `list` prints."""
    return lambda *words: [line.split() for line in prints("list", *words).splitlines()]


def at(run, seconds):
    """Let a run have been at work so many seconds ago."""
    when = time.time() - seconds
    for path in run.iterdir():
        os.utime(path, (when, when))


def test_runs_newest_first(here, monkeypatch, lines):
    without_slurm(here, monkeypatch)
    old, new = make_run(here / "runs", "old"), make_run(here / "runs/group", "new", steps=40)
    work(old, 3, **{"critic/score/mean": None, "sft/loss": 1.5})
    beat(old, outcome="finished")
    at(old, 7205)
    work(new, 2)
    beat(new, total_steps=40)
    header, first, second = lines()
    assert header[:4] == ["run", "state", "recipe", "step"]
    went = ["running", "rl", "2/40", "0.25", "10.0s", "6m", "20s", "-", "just", "now"]
    assert first == ["group/new", *went]
    went = ["finished", "rl", "3/3", "loss", "1.5", "10.0s", "-", "-", "2h", "00m", "ago"]
    assert second == ["old", *went]


def test_a_run_without_metrics(here, monkeypatch, lines):
    without_slurm(here, monkeypatch)
    run = make_run(here / "runs")
    (run / "config.yaml").write_text("")
    at(run, 30)
    assert lines()[1][:7] == ["run", "not", "started", "-", "0/?", "-", "-"]


def test_slurm_is_asked_once_for_all(here, monkeypatch, lines):
    for number in range(3):
        submit_run(here / f"{number}", f"{number}")
    log = fake_slurm(here, monkeypatch, squeue='echo "1|PENDING|Priority|N/A"', sacct="true")
    states = {words[0]: words[1] for words in lines(here)[1:]}
    assert states == {"0/runs/run": "unknown", "1/runs/run": "queued", "2/runs/run": "unknown"}
    assert lines(here)[0][0] == "run"
    asked = log.read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["squeue", "sacct"]
    assert sorted(asked[0].split("--jobs=")[1].split()[0].split(",")) == ["0", "1", "2"]


@pytest.mark.timeout(60)
def test_pipes_and_links_in_a_run_directory_hold_nobody_up(here, monkeypatch, lines):
    """Somebody with whom runs/ is shared could make them."""
    without_slurm(here, monkeypatch)
    run = make_run(here / "runs", "x")
    for name in ("metrics.jsonl", "heartbeat.json", "facts.json", "request_stop.json"):
        os.mkfifo(run / name)
    assert (lines()[1][0], main(["status", "x"])) == ("x", 0)


def test_where_there_are_no_runs(here, prints, refuses):
    assert prints("list", here).endswith(": no runs\n")
    assert "elsewhere: no such directory" in refuses("list", "elsewhere")
    assert prints("list").startswith("no runs in ")
