"""From a run's files and Slurm's answers to its state."""

import json
import os
from datetime import UTC, datetime

import pytest

from tests.unit.cli.status_runs import NOW, beat, make_run, submit_run
from verl_hpc.checkpoint.store import point_latest
from verl_hpc.runs.jobs import record_job
from verl_hpc.runs.queue import Answer, QueuedJob
from verl_hpc.runs.status import (
    SHORTEST_PATIENCE_S,
    START_PATIENCE_S,
    State,
    conclude,
    last_save,
    look,
)

JOB = "4711"


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """Heartbeats are those of a job, unless a test says otherwise."""
    monkeypatch.setenv("SLURM_JOB_ID", JOB)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def state(run, now=NOW, longest=None, **jobs):
    """The state; jobs are given by their ids, as "PENDING" or as a QueuedJob."""
    answers = {i: QueuedJob(job) if isinstance(job, str) else job for i, job in jobs.items()}
    return conclude(look(run, now, longest), Answer(answers))


WAITING = QueuedJob("PENDING", "BeginTime", "2027-01-15T09:00:00")
# As Slurm writes it.
AGAIN = QueuedJob("RUNNING", start=datetime.fromtimestamp(NOW + 4000).isoformat())  # noqa: DTZ006
HEARTBEATS = [
    # Under way, and before the first step.
    (("rollout",), 5, {}, State("running", "rollout"), ()),
    (("save_checkpoint",), 5, {}, State("saving", "save_checkpoint"), ()),
    (("",), 5, {}, State("running", ""), ()),
    (("build rollout (vllm)", 0), 14, {}, State("starting", "build rollout (vllm) (14 s)"), ()),
    (("reshard", 0), 14, {}, State("starting", "reshard (14 s)"), ()),
    (("testing", 0), 14, {}, State("running", "testing"), ()),
    # A failed run's job takes seconds to end.
    (("reward", 1, "failed"), 0, {}, State("failed", "in reward"), ("4711",)),
    (("reward", 1, "failed"), 0, {"4711": "RUNNING"}, State("failed", "in reward"), ("4711",)),
    *(
        (("rollout", 1, over), seconds, {}, State(over), ())
        for over in ("finished", "goal reached", "stopped")
        for seconds in (0, 1e6)
    ),
    # Silence; Slurm is not asked about every second of it.
    (("rollout",), 20, {}, State("running", "rollout"), ()),
    (("rollout",), 41, {"4711": "RUNNING"}, State("running", "rollout"), ("4711",)),
    (("rollout",), 41, {"4711": "SUSPENDED"},
     State("suspended", "in rollout; job 4711 is SUSPENDED"), ("4711",)),
    (("rollout",), 5000, {"4711": "SUSPENDED"},
     State("suspended", "in rollout; job 4711 is SUSPENDED"), ("4711",)),
    (("rollout",), 5000, {"4711": "RUNNING"},
     State("no heartbeat", "in rollout; job 4711 is RUNNING"), ("4711",)),
    # A job that is back in the queue, and one that runs again and has not spoken yet.
    (("rollout",), 5000, {"4711": WAITING}, State("queued", "job 4711", WAITING), ("4711",)),
    (("rollout",), 5000, {"4711": AGAIN},
     State("starting", "job 4711 is RUNNING (1000 s)", AGAIN), ("4711",)),
]  # fmt: skip
"""A heartbeat, the seconds since, Slurm's answers, the state, and the jobs to ask about."""


@pytest.mark.parametrize(("spoken", "seconds", "jobs", "expected", "asks"), HEARTBEATS)
def test_the_state_by_the_last_heartbeat(run, spoken, seconds, jobs, expected, asks):
    operator, step, outcome = (*spoken, *(1, None)[len(spoken) - 1 :])
    beat(run, operator, step, NOW, outcome)
    found = state(run, NOW + seconds, **jobs)
    assert (found.name, found.detail) == (expected.name, expected.detail)
    assert expected.queue is None or found == expected
    assert found.is_over is (outcome in ("finished", "goal reached", "stopped", "failed"))
    assert look(run, NOW + seconds).asks() == asks


@pytest.mark.parametrize(
    "longest, patience",
    [(None, START_PATIENCE_S), (1.0, SHORTEST_PATIENCE_S), (400.0, 1200.0)],
    ids=["no step yet", "short operators", "long operators"],
)
def test_silence_is_judged_by_the_longest_operator(run, longest, patience):
    beat(run, at=NOW)
    assert state(run, NOW + patience - 1, longest).name == "running"
    assert state(run, NOW + patience + 1, longest) == State("no heartbeat", "in rollout")
    assert look(run, NOW + patience + 1, longest).silent_s == patience + 1


@pytest.mark.parametrize("slurm", ["TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED"])
def test_silence_of_a_job_that_is_over(run, slurm):
    beat(run, at=NOW)
    found = state(run, NOW + 5000, **{JOB: slurm})
    assert found.name == "failed"
    assert found.detail.startswith(f"in rollout; Slurm says {slurm}")


def test_a_job_that_could_not_be_started(tmp_path):
    """Slurm says so where a node lacks the file system of the run directory."""
    run = submit_run(tmp_path, JOB)
    found = state(run, **{JOB: QueuedJob("FAILED", "JobLaunchFailure")})
    assert found.name == "failed"
    assert "ended as FAILED before the first heartbeat; Slurm says JobLaunchFailure" in found.detail
    assert "can nodes write the run directory" in found.detail


def test_a_process_of_this_machine_that_is_gone(run, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID")
    child = os.fork()
    if child == 0:
        beat(run, "reward", at=NOW)
        os._exit(0)
    os.waitpid(child, 0)
    assert state(run, NOW + 1) == State("failed", "in reward; its process is gone")
    assert look(run, NOW + 1).asks() == ()
    monkeypatch.setattr("verl_hpc.runs.status.socket.gethostname", lambda: "elsewhere")
    assert state(run, NOW + 1).name == "running", "of another machine's nothing is known"


# Clocks


def test_a_clock_that_is_ahead_is_no_negative_silence(run):
    beat(run, at=NOW + 3000)
    sight = look(run, NOW)
    assert (sight.silent_s, sight.clock_ahead_s) == (0.0, 3000.0)
    assert state(run, NOW).name == "running"


# Stopping and resuming


def test_a_run_that_waits_to_go_on(run):
    beat(run, at=NOW, outcome="restart")
    assert "submit it again" in state(run).detail
    names = {None: "interrupted", "PENDING": "queued", "FAILED": "interrupted"}
    assert {job: state(run, **{JOB: job} if job else {}).name for job in names} == names
    # Slurm may be about to start it again.
    ending = state(run, **{JOB: "COMPLETING"})
    assert (ending.name, ending.is_over) == ("queued", False)
    assert "before Slurm starts it again or ends it" in ending.detail


def test_the_next_link_of_a_chain(tmp_path):
    run = submit_run(tmp_path, "4710", JOB, "4712", "4713")
    beat(run, at=NOW, outcome="restart")
    assert look(run, NOW).asks() == (JOB, "4712", "4713")
    jobs = {JOB: "COMPLETED", "4713": "PENDING"}
    for second, words in (
        ("RUNNING", "starting job 4712 is RUNNING"),
        ("PENDING", "queued job 4712"),
    ):
        found = state(run, **jobs, **{"4712": second})
        assert f"{found.name} {found.detail}" == words


def test_a_finished_run_that_was_submitted_again(tmp_path):
    run = submit_run(tmp_path, JOB, "4712")
    beat(run, at=NOW, outcome="finished")
    assert look(run, NOW).asks() == (), "links of a chain that are left over do not count"
    later = datetime.fromtimestamp(NOW + 60, UTC).isoformat()
    record_job(run / "job", {"job_id": "5000", "submitted": later})
    assert look(run, NOW).asks() == ("5000",)
    assert (state(run, **{"5000": "PENDING"}).name, state(run).name) == ("queued", "finished")


# Before the first heartbeat


def test_a_submitted_run(tmp_path):
    run = submit_run(tmp_path, JOB)
    assert look(run, NOW).asks() == (JOB,)
    names = {"PENDING": "queued", "CONFIGURING": "starting", "FAILED": "failed"}
    assert {job: state(run, **{JOB: job}).name for job in names} == names
    assert state(run).name == "unknown"
    ended = "job 4711 ended as FAILED before the first heartbeat"
    assert state(run, **{JOB: "FAILED"}).detail == ended


def test_a_run_that_keeps_no_heartbeat(run):
    for text, *expected in (
        ("finished", "finished", ""),
        ("goal reached", "goal reached", ""),
        ("stopped at step 3: asked to stop by ann", "stopped", "at step 3: asked to stop by ann"),
        ("interrupted at step 3: signal TERM", "interrupted", "at step 3: signal TERM"),
    ):
        (run / "facts.json").write_text(json.dumps({"state": text}))
        assert state(run) == State(*expected)


def test_facts_of_the_end_leave_no_question_unless_it_was_submitted_since(tmp_path):
    run = submit_run(tmp_path, JOB)
    facts = run / "facts.json"
    facts.write_text(json.dumps({"state": "finished"}))
    assert look(run, NOW).asks() == (JOB,), "facts.json is older than the submission of 2027"
    os.utime(facts, (NOW, NOW))
    assert look(run, NOW).asks() == ()
    facts.write_text(json.dumps({"state": "interrupted at step 3: signal TERM"}))
    os.utime(facts, (NOW, NOW))
    assert look(run, NOW).asks() == (JOB,)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"state": "odd"}', '{"state": 3}'])
def test_facts_that_say_nothing(run, text):
    if text is not None:
        (run / "facts.json").write_text(text)
    assert state(run) == State("not started")
    assert not state(run).is_over
    (run / "metrics.jsonl").write_text("")
    assert state(run) == State("unknown", "it keeps no heartbeat")


def test_a_heartbeat_that_is_whole_counts_more_than_an_earlier_lifes_facts(run):
    (run / "facts.json").write_text(json.dumps({"state": "stopped at step 1: x"}))
    beat(run, at=NOW)
    assert state(run).name == "running"
    (run / "heartbeat.json").write_text('{"time": 1')
    assert state(run).name == "stopped"


def test_a_torn_list_of_jobs(tmp_path):
    run = submit_run(tmp_path, JOB)
    with (run / "job/submitted.jsonl").open("a") as file:
        file.write('{"job_id": "47')
    assert look(run, NOW).jobs == ()


# The last save


def test_the_save_that_latest_points_at(run):
    assert last_save(run) is None
    step = run / "checkpoints/step_00000040"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    os.utime(step / "manifest.json", (NOW, NOW))
    assert last_save(run) is None
    point_latest(step)
    save = last_save(run)
    assert (save.step, save.time) == (40, NOW)
    (step / "manifest.json").unlink()
    assert last_save(run) is None, "half a step is no step"
    (step.parent / "latest").unlink()
    (step.parent / "latest").symlink_to("elsewhere")
    assert last_save(run) is None
