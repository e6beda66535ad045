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
    assert "not started again" in explain(asked, job, ())


def test_a_chain_is_for_training(tmp_path):
    text = render_script(plan_job(doctors(tmp_path, restarts={"by": "chain", "most": 3})))
    assert "job/ended" not in text


def test_options_that_only_training_has_may_be_dropped(tmp_path):
    job = plan_job(doctors(tmp_path, drop_directives=["signal", "mem"]))
    assert not {"signal", "mem"} & {setting.name for setting in job.directives}


def test_without_mpi(tmp_path):
    text = render_script(plan_job(doctors(tmp_path, mpi="none")))
    assert "--mpi=none" in text
    assert "--bootstrap" not in text, "the profile says it"


@pytest.mark.parametrize(
    "environ, inside",
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}, True),
        ({"SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_PROCID": "0"}, False),
        ({"SLURM_STEP_ID": "0"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
    ],
)
def test_ranks_of_a_step(environ, inside):
    assert is_inside_step(environ) is inside


def result(directory, job="7"):
    path = directory / f"job/preflight-{job}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"verdicts": to_data(VERDICTS)}))
    return path


def test_waiting_until_the_ranks_have_spoken(tmp_path):
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 100:
            result(tmp_path)

    asked = []
    queue = lambda words: asked.append(list(words)) or "7 RUNNING\n"  # noqa: E731
    assert wait_for_result(tmp_path, "7", queue, sleep) == VERDICTS
    assert len(naps) == 100
    assert len(asked) == 3, "of a controller that serves everybody, every 30 s"


def test_a_controller_that_does_not_answer_is_asked_again(tmp_path):
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 200:
            result(tmp_path)

    def silent(words):
        raise ClusterError("squeue: Socket timed out on send/recv operation")

    assert wait_for_result(tmp_path, "7", silent, sleep) == VERDICTS


def test_a_job_that_ends_without_a_result(tmp_path):
    naps = []
    with pytest.raises(ClusterError, match="job 7 has ended without a result") as caught:
        wait_for_result(tmp_path, "7", lambda words: "8 RUNNING\n", naps.append)
    assert "says more" not in str(caught.value), "there is nothing to read"
    assert 30 < sum(naps) < 70


def test_a_job_that_could_not_be_started(tmp_path):
    def slurm(words):
        return "JobState=FAILED Reason=JobLaunchFailure" if words[0] == "scontrol" else ""

    with pytest.raises(ClusterError, match=r"FAILED, JobLaunchFailure: .*write the run directory"):
        wait_for_result(tmp_path, "7", slurm, lambda seconds: None)


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
        wait_for_result(tmp_path, "7", slurm, lambda seconds: None)
    assert asked[-1] == ["scancel", "7"]


def test_a_job_that_waits_for_its_turn_is_waited_for(tmp_path):
    states = iter(["7 PENDING\n", "7 PENDING\n", ""])

    def slurm(command):
        assert command[0] != "scancel"
        return "Reason=Priority" if command[0] == "scontrol" else next(states, "")

    with pytest.raises(ClusterError, match="has ended without a result"):
        wait_for_result(tmp_path, "7", slurm, lambda seconds: None)


@pytest.fixture
def attempt(tmp_path):
    """The directory of a start's logs, which is the latest."""
    attempt = tmp_path / "job/attempts/0"
    attempt.mkdir(parents=True)
    (attempt.parent / "latest").symlink_to("0")
    return attempt


def test_a_job_whose_rank_was_killed(tmp_path, attempt):
    text = "2026-11-22T06:30:19 attempt 0: job 7 on n[0-1]\n"
    text += "srun: error: n1: task 1: Killed\nsrun: Force Terminated\n"
    (tmp_path / "job/slurm-7.log").write_text(text)
    with pytest.raises(ClusterError, match=r"first: srun: error: n1: task 1: Killed\. "):
        wait_for_result(tmp_path, "7", lambda words: "", lambda seconds: None)


def test_a_job_that_fails_before_it_can_tell(tmp_path, attempt):
    lines = ["verl_hpc: rank 5 of 8 on n3 failed in between n2 and n3: OSError: no route"]
    lines += ["Traceback (most recent call last):", '  File "x.py", line 1', "OSError: no route"]
    (attempt / "n3.log").write_text("".join(f"5: {line}\n" for line in lines))
    with pytest.raises(ClusterError, match=r"between n2 and n3: OSError: no route\. "):
        wait_for_result(tmp_path, "7", lambda words: "", lambda seconds: None)


def test_the_result_of_an_earlier_job_is_not_taken_for_this_ones(tmp_path):
    result(tmp_path, "6")
    with pytest.raises(ClusterError):
        wait_for_result(tmp_path, "7", lambda words: "", lambda seconds: None)


def test_reading_it_later(tmp_path):
    import shutil

    profile(tmp_path)
    path = result(tmp_path)
    shutil.copy(tmp_path / "site.yaml", tmp_path / "job")
    found, site = newest_result(tmp_path)
    assert (found, site.site.name) == (path, "here")
    assert read_result(found) == VERDICTS


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
