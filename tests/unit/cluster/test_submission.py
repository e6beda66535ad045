"""Handing a script to sbatch, through submitit, with a fake sbatch on PATH."""

import os

import pytest

from tests.unit.cluster.requests import profile, request
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_script
from verl_hpc.cluster.submission import overriding_variables, submit
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.jobs import read_jobs

SBATCH = """#!/bin/bash
count=$(cat "$LAB/count" 2>/dev/null || echo 40)
echo $((count + 1)) >"$LAB/count"
echo "$*" >>"$LAB/calls"
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


def test_the_log_directory_is_there_before_the_job(cluster, tmp_path):
    send(tmp_path)
    output = f"#SBATCH --output={tmp_path}/runs/run/job/slurm-%j.log\n"
    assert output in (cluster / "script.41").read_text()
    assert (tmp_path / "runs/run/job").is_dir()


def test_a_chain_waits_link_by_link(cluster, tmp_path):
    assert send(tmp_path, restarts={"by": "chain", "most": 2}) == ["41", "42", "43"]
    calls = (cluster / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls[1:]] == [
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


def test_variables_that_win_over_the_script(monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "x")
    assert overriding_variables() == ["SBATCH_PARTITION"]
