"""The doctor's job: its script, and waiting for what its ranks say."""

import json
import os

import pytest

from tests.unit.cluster.requests import profile, request
from tests.unit.cluster.shellcheck import shellcheck
from tests.unit.waiting import within
from verl_hpc.cluster.excluded import exclude_list, read_excluded
from verl_hpc.cluster.explain import explain
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_script
from verl_hpc.doctor.job import (
    is_inside_step,
    keep_out,
    newest_result,
    read_result,
    wait_for_result,
)
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.verdict import fails, ok, to_data

VERDICTS = [ok("ranks", "fine"), fails("pairs", "slow", "leave out n1", ["n1"])]


def doctors(directory, **fields):
    asked = request(directory, site=profile(directory, **fields))
    return type(asked)(**{**vars(asked), "program": "doctor"})


def test_the_script(tmp_path):
    asked = doctors(tmp_path)
    job = plan_job(asked)
    text = render_script(job)
    (tmp_path / "job.sbatch").write_text(text)
    assert shellcheck(tmp_path / "job.sbatch") == ""
    words = 'python -m verl_hpc doctor --inside --cluster "$RUN/job/site.yaml" '
    words += '--out "$RUN/job" --scratch "$CACHE"'
    assert words in " ".join(text.replace("\\\n", "").split())
    assert text.endswith('\nexit "$rc"\n')
    assert "#SBATCH --no-requeue\n" in text
    for word in ("--signal", "scontrol requeue", "train"):
        assert word not in text
    assert "not started again" in explain(job, ())


@pytest.mark.parametrize(
    ("fields", "words", "others"),
    [
        ({"restarts": {"by": "chain", "most": 3}}, [], ["job/ended"]),
        ({"drop_directives": ["signal", "mem"]}, [], ["SBATCH --signal", "SBATCH --mem"]),
        # The profile says whether there is MPI.
        ({"mpi": "none"}, ["--mpi=none"], ["--bootstrap"]),
    ],
    ids=["a chain is for training", "options of training may be dropped", "without MPI"],
)
def test_words_of_the_script(tmp_path, fields, words, others):
    text = render_script(plan_job(doctors(tmp_path, **fields)))
    assert [word for word in (*words, *others) if word in text] == words


def test_ranks_of_a_step():
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    for environ in (step | {"SLURM_PROCID": "3"}, step | {"SLURM_STEP_NUM_TASKS": "2"}):
        assert is_inside_step(environ), environ
    for environ in (
        {},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"},
        step | {"SLURM_STEP_ID": str(0xFFFFFFFA)},
        {"SLURM_STEP_ID": "0"},
        step | {"SLURM_STEP_NUM_TASKS": "1"},
    ):
        assert not is_inside_step(environ), environ


def result(directory, job="7"):
    path = directory / f"job/preflight-{job}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"verdicts": to_data(VERDICTS)}))
    return path


def wait(directory, slurm, sleep=lambda seconds: None):
    """For the result of job 7; `slurm` is the answer to all questions, or answers each."""
    return wait_for_result(directory, "7", slurm if callable(slurm) else lambda _: slurm, sleep)


@pytest.mark.parametrize("answers", [True, False])
def test_waiting_until_the_ranks_have_spoken(tmp_path, answers):
    """A controller that serves everybody is asked every 30 s, and again if it does not answer."""
    naps, asked = [], []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 100:
            result(tmp_path)

    def queue(words):
        asked.append(words)
        if not answers:
            raise ClusterError("squeue: Socket timed out on send/recv operation")
        return "7 RUNNING\n"

    assert wait(tmp_path, queue, sleep) == VERDICTS
    assert (len(naps), len(asked)) == (100, 3)


def test_a_job_that_ends_without_a_result(tmp_path):
    result(tmp_path, "6")  # of an earlier job
    naps = []
    with pytest.raises(ClusterError, match="job 7 has ended without a result") as caught:
        wait(tmp_path, "8 RUNNING\n", naps.append)
    assert "says more" not in str(caught.value), "there is nothing to read"
    assert 30 < sum(naps) < 70


def test_a_job_that_could_not_be_started(tmp_path):
    def slurm(words):
        return "JobState=FAILED Reason=JobLaunchFailure" if words[0] == "scontrol" else ""

    with pytest.raises(ClusterError, match=r"FAILED, JobLaunchFailure: .*write the run directory"):
        wait(tmp_path, slurm)


@pytest.mark.parametrize(
    "reason, words",
    [
        ("launch_failed_requeued_held", "it could not be started and is held"),
        ("JobHeldAdmin", "JobHeldAdmin: an administrator holds it"),
        ("JobHeldUser", "JobHeldUser: you hold it"),
        ("QOSMaxNodePerJobLimit", "more than your account or QOS gives one job"),
    ],
)
def test_a_job_that_never_starts_is_cancelled(tmp_path, reason, words):
    asked = []

    def slurm(command):
        asked.append(command)
        held = f"JobState=PENDING Reason={reason}"
        return held if command[0] == "scontrol" else "7 PENDING\n"

    with pytest.raises(ClusterError, match=f"job 7 does not start .*, and is cancelled .*{words}"):
        wait(tmp_path, slurm)
    assert asked[-1] == ["scancel", "7"]


def test_a_job_that_waits_for_its_turn_is_waited_for(tmp_path):
    states = iter(["7 PENDING\n", "7 PENDING\n", ""])

    def slurm(command):
        assert command[0] != "scancel"
        return "Reason=Priority" if command[0] == "scontrol" else next(states, "")

    with pytest.raises(ClusterError, match="has ended without a result"):
        wait(tmp_path, slurm)


@pytest.fixture
def attempt(tmp_path):
    """The directory of a start's logs, which is the latest."""
    attempt = tmp_path / "job/attempts/0"
    attempt.mkdir(parents=True)
    (attempt.parent / "latest").symlink_to("0")
    return attempt


def test_a_job_whose_rank_was_killed_or_fails_before_it_can_tell(tmp_path, attempt):
    text = "2026-11-22T06:30:19 attempt 0: job 7 on n[0-1]\n"
    text += "srun: error: n1: task 1: Killed\nsrun: Force Terminated\n"
    (tmp_path / "job/slurm-7.log").write_text(text)
    with pytest.raises(ClusterError, match=r"first: srun: error: n1: task 1: Killed\. "):
        wait(tmp_path, "")
    lines = ["verl_hpc: rank 5 of 8 on n3 failed in between n2 and n3: OSError: no route"]
    lines += ["Traceback (most recent call last):", '  File "x.py", line 1', "OSError: no route"]
    (attempt / "n3.log").write_text("".join(f"5: {line}\n" for line in lines))
    with pytest.raises(ClusterError, match=r"between n2 and n3: OSError: no route\. "):
        wait(tmp_path, "")


def test_reading_it_later(tmp_path):
    profile(tmp_path)
    path = result(tmp_path)
    (tmp_path / "site.yaml").rename(tmp_path / "job/site.yaml")
    newest, site = newest_result(tmp_path)
    assert (newest, site.site.name) == (path, "here")
    assert read_result(newest) == VERDICTS


def test_no_result(tmp_path):
    with pytest.raises(ConfigError, match="no result there"):
        newest_result(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("x.json", "none.json", "pipe.json"):
        with pytest.raises(ConfigError, match="no result of the doctor"):
            within(5, read_result, tmp_path / name)


def test_failing_nodes_are_kept_out(tmp_path):
    site = profile(tmp_path, preflight={"exclude_list": str(tmp_path / "list.json")})
    (added,) = keep_out(site, VERDICTS)
    assert (added.node, added.reason) == ("n1", "pairs: slow")
    assert read_excluded(exclude_list(site.site)) == [added]
