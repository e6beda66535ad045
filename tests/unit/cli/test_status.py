"""`status` as a user meets it."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.unit.cli.status_runs import (
    beat,
    fake_slurm,
    heavy_imports,
    make_run,
    submit_run,
    without_slurm,
    work,
)
from tests.unit.cluster.requests import ROOT
from verl_hpc.cli import status as verb
from verl_hpc.cli.main import main
from verl_hpc.config.requests import Request, leave_request
from verl_hpc.runs.heartbeat import Heartbeat
from verl_hpc.runs.ranks import Placed, Progress, Ranks, write_ranks

NO_ANSWER = "echo 'Unable to contact slurm controller' >&2; exit 1"
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def shown(prints):
    """What `status` prints."""
    return lambda *words: prints("status", *words)


@pytest.fixture
def as_json(prints):
    return lambda *words: json.loads(prints("status", *words, "--json"))


def test_a_run_under_way(run, shown):
    text = shown("ppo_lab")
    lines = text.splitlines()
    assert lines[0] == "runs/ppo_lab: running: update_actor"
    assert "2 of 40 done, step 3 under way; heartbeat just now" in lines[1]
    assert "10.0s a step (mean of the last 2), 200 tokens/s, 6m 20s to go: " in text
    assert "reward 0.25, kl 0.01" in text
    assert "last save  none yet" in text and "placement" not in text
    rows = [line.split() for line in lines[lines.index("") + 1 :]]
    assert [row[:3] for row in rows] == [
        ["rollout", "6.0s", "60%"],
        ["update_actor", "3.0s", "30%"],
        ["other", "1.0s", "10%"],
    ]


def test_without_a_name_it_is_the_run_last_at_work(run, shown):
    os.utime(make_run(run.parent, "old") / "config.yaml", (1, 1))
    assert shown().startswith("runs/ppo_lab: running")


def test_as_json(run, as_json):
    told = as_json("ppo_lab")
    assert told["run"] == "runs/ppo_lab"
    assert (told["state"], told["operator"]) == ("running", "update_actor")
    assert (told["step"], told["total_steps"]) == (2, 40)
    assert told["seconds_by_operator"] == {"rollout": 6.0, "update_actor": 3.0, "other": 1.0}
    assert not told["operators_overlap"]
    assert (told["tokens_per_s"], told["remaining_s"]) == (200.0, 380.0)
    assert told["metrics"] == {"critic/score/mean": 0.25, "actor/kl_loss": 0.01}
    assert told["heartbeat_age_s"] < 60
    assert (told["queue"], told["last_save"], told["problem"]) == (None, None, "")
    assert told["placements"] == []


def test_placements_have_their_roles_and_what_they_do(run, shown, as_json):
    heart = Heartbeat(run)
    heart.place([Placed("train", 0, 1, ("actor", "critic")), Placed("rollout", 2, 2, ("rollout",))])
    heart.beat("update_actor", 3)
    rows = [Progress(i, 9, "wait" if i else "update_actor", 1.0) for i in range(2)]
    rows.append(Progress(2, 9, "rollout", 1.0))
    write_ranks(run, Ranks(time.time() - 4, 10.0, 120.0, None, tuple(rows)))
    text = shown("ppo_lab")
    assert (
        "  placement  train: ranks 0-1 (actor, critic): update_actor on 0; wait on 1   (seen 4.0s "
    ) in text
    assert "             rollout: rank 2 (rollout): rollout\n" in text
    train, rollout = as_json("ppo_lab")["placements"]
    assert train.pop("seen_s") >= 4.0
    ranks = {"name": "train", "first_rank": 0, "last_rank": 1, "roles": ["actor", "critic"]}
    assert train == ranks | {"num_ranks_by_operator": {"update_actor": 1, "wait": 1}}
    assert rollout["num_ranks_by_operator"] == {"rollout": 1}
    heart.end("finished")
    assert "placement  train: ranks 0-1 (actor, critic)\n" in shown("ppo_lab")


def test_operators_that_overlap_have_seconds_and_no_shares(here, shown, as_json):
    run = make_run(here / "runs", "split", steps=40)
    work(run, 2, **{"timing_s/rollout": 9.0, "timing_s/update_actor": 8.0, "timing_s/wait": 4.0})
    lines = shown("split").splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0] == "  a mean step, longest of all ranks; they overlap:"
    expected = [["rollout", "9.0s"], ["update_actor", "8.0s"], ["wait", "4.0s"]]
    assert [line.split()[:2] for line in table[1:]] == expected
    assert not any("%" in line for line in table)
    assert as_json("split")["operators_overlap"]


def test_a_checkpoint_and_a_request(run, shown, as_json):
    step = run / "checkpoints/step_00000002"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    (run / "checkpoints/latest").symlink_to(step.name)
    leave_request(run, Request(kind="stop", after_step=9, by="ann"))
    text = shown("ppo_lab")
    assert "last save  step 2, just now" in text
    assert "request    stop after step 9, asked by ann" in text
    found = as_json("ppo_lab")
    assert (found["last_save"]["step"], [r["by"] for r in found["requests"]]) == (2, ["ann"])


def test_a_job_its_attempt_and_its_restarts(here, monkeypatch, shown):
    without_slurm(here, monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("VERL_HPC_ATTEMPT", "x/3")
    beat(submit_run(here, "4711", by="requeue", most=5))
    text = shown("run")
    assert "job        4711 on " in text
    assert "attempt 3, restarts 1 of 5" in text


def test_a_run_that_waits_says_why_and_until_when(here, monkeypatch, shown, as_json):
    submit_run(here, "4711")
    log = fake_slurm(here, monkeypatch, squeue='echo "4711|PENDING|Priority|2027-01-15T09:00:00"')
    text = shown("run")
    expected = "runs/run: queued: job 4711; Priority; expected to start 2027-01-15 09:00:00"
    assert text.splitlines()[0] == expected
    waits = {"state": "PENDING", "reason": "Priority", "start": "2027-01-15T09:00:00"}
    assert as_json("run")["queue"] == waits
    assert len(log.read_text().splitlines()) == 1, "the second look uses the first one's answer"


@pytest.mark.parametrize(
    ("squeue", "words"),
    [
        ('echo "4711|PENDING|None|N/A"', "queued: job 4711; no estimate of its start"),
        (NO_ANSWER, "unknown: submitted as job 4711; no heartbeat yet\n"),
        (NO_ANSWER, "note       Slurm did not answer: squeue"),
        (NO_ANSWER, "Unable to contact slurm controller"),
    ],
)
def test_what_slurm_says_of_a_run_without_a_heartbeat(here, monkeypatch, squeue, words, shown):
    submit_run(here, "4711")
    fake_slurm(here, monkeypatch, squeue=squeue)
    assert words in shown("run")


def test_a_failed_run_says_where_to_look(run, shown):
    (run / "job/attempts/0").mkdir(parents=True)
    beat(run, "reward", 3, outcome="failed")
    text = shown("ppo_lab")
    assert text.startswith("runs/ppo_lab: failed: in reward\n")
    assert "`python -m verl_hpc logs runs/ppo_lab --first-error` says why" in text
    assert "to go" not in text


def test_heartbeats_of_other_times(run, shown):
    beat(run, at=time.time() + 90)
    assert "is 1m 30s ahead of this machine's" in shown("ppo_lab")
    # Its process is this one, which is there: what is late is the heartbeat.
    beat(run, "rollout", 3, at=time.time() - 7300, total_steps=40)
    assert shown("ppo_lab").startswith("runs/ppo_lab: no heartbeat for 2h 01m: in rollout\n")
    (run / "heartbeat.json").write_text('{"time": 17')
    assert shown("ppo_lab").startswith("runs/ppo_lab: unknown: it keeps no heartbeat\n")


def test_values_that_are_not_finite_and_an_evaluation_of_an_earlier_step(run, shown, as_json):
    score = {"val/score/mean": lambda step: 0.5 if step == 5 else None}
    work(run, 6, first=3, **{"actor/kl_loss": float("nan")}, **score)
    text = shown("ppo_lab")
    assert "kl not finite" in text and "val score 0.5 at step 5" in text
    assert as_json("ppo_lab")["metrics"]["actor/kl_loss"] is None


@pytest.mark.parametrize("text", ["", '{"step": 1, "ti', "null\n3\n[]\n{}\n", "\x00\x00"])
def test_metrics_that_say_nothing(run, text, shown, as_json):
    (run / "metrics.jsonl").write_text(text)
    found = as_json("ppo_lab")
    assert (found["step"], found["seconds_per_step"], found["metrics"]) == (0, None, {})
    assert shown("ppo_lab").startswith("runs/ppo_lab: running")


def test_no_runs_at_all(capsys):
    assert main(["status"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"no runs in {Path.cwd() / 'runs'} yet; ")
    assert (said.err, main(["status", "--json"]), capsys.readouterr().out) == ("", 0, "null\n")


def test_a_job_is_shown_with_all_its_nodes(run, monkeypatch, shown):
    monkeypatch.setenv("SLURM_JOB_ID", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-1]")
    beat(run, "reward", 3)
    assert "2 on n[0-1]" in shown("ppo_lab")
    assert json.loads(shown("ppo_lab", "--json"))["nodes"] == "n[0-1]"


# Watching


def test_watching_ends_with_the_run(run, monkeypatch, shown):
    rounds = []

    def sleep(seconds):
        rounds.append(seconds)
        if len(rounds) == 2:
            beat(run, "end", 40, outcome="finished", total_steps=40)

    monkeypatch.setattr(verb.time, "sleep", sleep)
    text = shown("ppo_lab", "--watch")
    assert text.count("running: update_actor") == 2
    assert "runs/ppo_lab: finished" in text
    assert rounds == [2.0, 2.0]


def test_watching_as_json_is_one_object_a_line(run, monkeypatch, shown):
    monkeypatch.setattr(verb.time, "sleep", lambda seconds: beat(run, outcome="stopped"))
    lines = shown("ppo_lab", "--watch", "--json").splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["running", "stopped"]


def test_ctrl_c_is_no_error(run, monkeypatch, shown):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(verb.time, "sleep", interrupt)
    assert "running" in shown("ppo_lab", "--watch")


# What a login node imports


SUBMIT = ["submit", "--config", ROOT / "configs/run/ppo_70b.yaml", "--dry-run", "--time", "10"]
SUBMIT += ["--cluster", ROOT / "slurm/h100_infiniband_pyxis.yaml", "--nodes", "16"]
VERBS = [["status", "run"], ["list"], ["logs", "run"], ["save", "run"], SUBMIT]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_the_verbs_import_nothing_heavy(here, words):
    run = make_run(here / "runs")
    work(run, 2)
    beat(run)
    assert heavy_imports(words, here) == ""
