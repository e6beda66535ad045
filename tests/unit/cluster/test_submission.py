"""Handing a script to sbatch, through submitit, with a fake sbatch on PATH."""

import multiprocessing
import os

import pytest

from tests.unit.cluster.requests import profile, request
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_script
from verl_hpc.cluster.submission import only_submission, submit
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.jobs import read_jobs

SBATCH = """#!/bin/bash
count=$(cat "$LAB/count" 2>/dev/null || echo 40)
echo $((count + 1)) >"$LAB/count"
echo "$*" >>"$LAB/calls"
env >"$LAB/environ"
cp "${!#}" "$LAB/script.$((count + 1))"
if [ -n "$REFUSES" ]; then echo "sbatch: error: $REFUSES" >&2; exit 1; fi
echo "Submitted batch job $((count + 1))"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """sbatch that gives job ids from 41 up; srun only has to be there."""
    lab = tmp_path / "lab"
    lab.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", "#!/bin/sh\n")):
        (lab / name).write_text(text)
        (lab / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{lab}:{os.environ['PATH']}")
    monkeypatch.setenv("LAB", str(lab))
    monkeypatch.setenv("REFUSES", "")
    (tmp_path / "model").mkdir()
    return lab


def queue(script="/elsewhere/x.sh", **jobs):
    text = "".join(f"{job[1:]}|{state}|{script}\n" for job, state in jobs.items())
    return lambda words: text


def send(directory, *overrides, run=None, **fields):
    asked = request(directory, *overrides, site=profile(directory, **fields))
    job = plan_job(asked)
    return submit(asked, job, render_script(job), "report", run or queue())


def test_a_job(cluster, tmp_path):
    assert send(tmp_path) == ["41"]
    directory = tmp_path / "runs/run/job"
    script = (directory / "job.sbatch").read_text()
    assert (cluster / "script.41").read_text() == script
    assert (directory / "41_submission.sh").read_text() == script
    (facts,) = read_jobs(directory)
    assert (facts["job_id"], facts["nodes"], facts["ranks"]) == ("41", 2, 8)
    assert facts["submitted"].endswith("+00:00")


def test_a_run_that_nobody_has_submitted_asks_no_controller(cluster, tmp_path):
    asked = []
    send(tmp_path, run=lambda words: asked.append(words) or "")
    assert asked == []
    send(tmp_path, run=lambda words: asked.append(words) or "")
    assert len(asked) == 1


def test_the_log_directory_is_there_before_the_job(cluster, tmp_path):
    send(tmp_path)
    output = f"#SBATCH --output={tmp_path}/runs/run/job/slurm-%j.log\n"
    assert output in (cluster / "script.41").read_text()
    assert (tmp_path / "runs/run/job").is_dir()


def test_a_chain_waits_link_by_link(cluster, tmp_path):
    assert send(tmp_path, restarts={"by": "chain", "most": 2}) == ["41", "42", "43"]
    calls = (cluster / "calls").read_text().splitlines()
    assert [call.split()[-2] for call in calls[1:]] == [
        "--dependency=afterany:41",
        "--dependency=afterany:42",
    ]
    assert "dependency" not in calls[0]
    assert len(read_jobs(tmp_path / "runs/run/job")) == 3


def test_sbatch_that_refuses_says_why(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("REFUSES", "invalid partition specified: x")
    with pytest.raises(ClusterError, match="invalid partition specified: x"):
        send(tmp_path)
    assert read_jobs(tmp_path / "runs/run/job") == []


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_two_jobs_never_share_a_run_directory(cluster, tmp_path, state):
    send(tmp_path)
    with pytest.raises(ClusterError) as caught:
        send(tmp_path, run=queue(j41=state))
    for part in (f"job 41 is {state}", "scancel 41", "name="):
        assert part in str(caught.value)
    assert not (cluster / "script.42").exists()


def test_a_job_whose_submission_was_cut_off_is_found(cluster, tmp_path):
    """sbatch had taken it, and the program that called sbatch did not live to write it down."""
    send(tmp_path)
    job = tmp_path / "runs/run/job"
    (job / "submitted.jsonl").unlink()
    with pytest.raises(ClusterError, match=r"its job 41 is PENDING.*was cut off"):
        send(tmp_path, run=queue(job / ".submission_file_0123.sh", j41="PENDING"))
    assert not (cluster / "script.42").exists()
    assert [facts["job_id"] for facts in read_jobs(job)] == ["41"], "status must know of it"


def test_a_run_of_a_sweep_that_was_cut_off_is_found(cluster, tmp_path):
    send(tmp_path, "name='0'")
    (tmp_path / "runs/0/job/submitted.jsonl").unlink()
    with pytest.raises(ClusterError, match=r"its job 41_0 is RUNNING"):
        send(tmp_path, "name='0'", run=lambda _: f"41_0|RUNNING|{tmp_path}/runs/.x.sh\n")


def test_another_run_may_be_in_the_queue(cluster, tmp_path):
    send(tmp_path)
    assert send(tmp_path, "name=other", run=queue(j41="RUNNING")) == ["42"]


def test_a_run_goes_on_with_a_new_job(cluster, tmp_path):
    send(tmp_path)
    assert send(tmp_path, run=queue(j99="RUNNING")) == ["42"]
    assert [facts["job_id"] for facts in read_jobs(tmp_path / "runs/run/job")] == ["41", "42"]


def test_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"sbatch is not on PATH.*--dry-run"):
        send(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_mistake_leaves_nothing_behind(cluster, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path"):
        send(tmp_path, "model.path=nowhere")
    assert not (tmp_path / "runs").exists()
    assert not (cluster / "calls").exists()


def test_what_is_asked_for_beats_the_environment(cluster, tmp_path):
    """sbatch takes words of its command line before variables, and these before the script."""
    send(tmp_path, account="mine", extra_directives=["--comment=a b"])
    (call,) = (cluster / "calls").read_text().splitlines()
    directives = [
        line.removeprefix("#SBATCH ").replace('"', "")
        for line in (cluster / "script.41").read_text().splitlines()
        if line.startswith("#SBATCH ")
    ]
    assert call.startswith(" ".join(directives))
    assert "--account=mine" in directives


def test_the_callers_job_does_not_travel(cluster, tmp_path, monkeypatch):
    left = ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SBATCH_GRES", "PMIX_RANK", "CUDA_VISIBLE_DEVICES")
    for name in (*left, "SLURM_CONF", "OMP_PLACES", "MY_OWN"):
        monkeypatch.setenv(name, "7")
    send(tmp_path, pass_environment=["OMP_PLACES"])
    seen = (cluster / "environ").read_text().splitlines()
    assert {"SLURM_CONF=7", "OMP_PLACES=7", "MY_OWN=7"} <= set(seen)
    assert not [name for name in left if f"{name}=7" in seen]
    assert os.environ["SLURM_JOB_ID"] == "7", "the process keeps its own"


def test_two_submissions_at_once(cluster, tmp_path):
    (tmp_path / "runs/run/job").mkdir(parents=True)
    with only_submission(tmp_path / "runs/run", tmp_path / "runs/run/job"):
        process = multiprocessing.get_context("fork").Process(target=submit_again, args=(tmp_path,))
        process.start()
        process.join(60)
    assert process.exitcode == 3
    assert not (cluster / "calls").exists()
    assert send(tmp_path) == ["41"]


def submit_again(directory):
    try:
        send(directory)
    except ClusterError as error:
        os._exit(3 if "another process is submitting this run right now" in str(error) else 4)
