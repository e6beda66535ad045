"""Handing a script to sbatch, through submitit, with a fake sbatch on PATH."""

import multiprocessing
import os
import re
from pathlib import Path

import pytest

from tests.unit.cluster.requests import profile, request
from tests.unit.programs import program, umask
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_script
from verl_hpc.cluster.submission import only_submission, submit
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.jobs import read_jobs

SBATCH = """
count=$(cat "$LAB/count" 2>/dev/null || echo 40)
echo $((count + 1)) >"$LAB/count"
echo "$*" >>"$LAB/calls"
env >"$LAB/environ"
cp "${!#}" "$LAB/script.$((count + 1))"
if [ -n "$REFUSES" ] && [ "$count" -ge "$ACCEPTED" ]; then
    echo "sbatch: error: $REFUSES" >&2
    exit 1
fi
echo "Submitted batch job $((count + 1))$WHERE"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """sbatch that gives job ids from 41 up; srun only has to be there."""
    lab = tmp_path / "lab"
    program(lab / "sbatch", SBATCH)
    program(lab / "srun", "")
    monkeypatch.setenv("PATH", f"{lab}:{os.environ['PATH']}")
    monkeypatch.setenv("LAB", str(lab))
    monkeypatch.setenv("REFUSES", "")
    monkeypatch.setenv("ACCEPTED", "0")
    (tmp_path / "model").mkdir()
    return lab


def queue(script="/elsewhere/x.sh", **jobs):
    text = "".join(f"{job[1:]}|{state}|{script}\n" for job, state in jobs.items())
    return lambda words: text


ASK = object()
"""For `send`: the squeue on PATH is asked, as it is by users."""


def send(directory, *overrides, run=None, **fields):
    asked = request(directory, *overrides, site=profile(directory, **fields))
    job = plan_job(asked)
    return submit(job, render_script(job), "report", None if run is ASK else run or queue())


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
    for questions in (0, 1):
        send(tmp_path, run=lambda words: asked.append(words) or "")
        assert len(asked) == questions


def test_a_chain_waits_link_by_link(cluster, tmp_path):
    assert send(tmp_path, restarts={"by": "chain", "most": 2}) == ["41", "42", "43"]
    calls = (cluster / "calls").read_text().splitlines()
    after = [call.split()[-2] for call in calls[1:]]
    assert after == [f"--dependency=afterany:{job}" for job in (41, 42)]
    assert "dependency" not in calls[0]
    assert len(read_jobs(tmp_path / "runs/run/job")) == 3


def test_a_refusal_leaves_what_was_there_before(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("REFUSES", "invalid partition specified: x")
    for made, left in ((None, []), ("other", ["other"]), ("run", ["other", "run"])):
        if made is not None:
            (tmp_path / "runs" / made).mkdir(parents=True)
        with pytest.raises(ClusterError, match="invalid partition specified: x"):
            send(tmp_path, code="installed")
        assert sorted(path.name for path in tmp_path.glob("runs/*")) == left
        assert (tmp_path / "runs").exists() is bool(left)


def test_a_chain_keeps_its_directory_where_one_link_is_queued(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("REFUSES", "Job violates accounting/QOS policy")
    monkeypatch.setenv("ACCEPTED", "41")
    told = r"accounting/QOS.*: 41\. End them with `scancel 41`.*--max-restarts 0"
    with pytest.raises(ClusterError, match=told):
        send(tmp_path, code="installed", restarts={"by": "chain", "most": 2})
    assert [facts["job_id"] for facts in read_jobs(tmp_path / "runs/run/job")] == ["41"]


@pytest.mark.parametrize(
    "lost", ["Socket timed out on send/recv operation", "Zero Bytes were transmitted or received"]
)
def test_a_job_that_slurm_may_have_taken_keeps_its_directory(cluster, tmp_path, monkeypatch, lost):
    monkeypatch.setenv("REFUSES", f"Batch job submission failed: {lost}")
    with pytest.raises(ClusterError, match=r"does not say whether Slurm has taken the job.*--me"):
        send(tmp_path, code="installed")
    job = tmp_path / "runs/run/job"
    monkeypatch.setenv("REFUSES", "")
    with pytest.raises(ClusterError, match=r"its job 41 is PENDING.*was cut off"):
        send(tmp_path, code="installed", run=queue(job / ".submission_file_0123.sh", j41="PENDING"))
    assert not (cluster / "script.42").exists()
    assert [facts["job_id"] for facts in read_jobs(job)] == ["41"], "status must know of it"


def test_the_cluster_is_the_one_that_sbatch_names(cluster, tmp_path, monkeypatch):
    """SLURM_CLUSTERS of the submitter, or a list of which Slurm takes one."""
    monkeypatch.setenv("WHERE", " on cluster c2")
    for fields in ({}, {"cluster": "c2,c3"}):
        send(tmp_path, **fields)
        assert read_jobs(tmp_path / "runs/run/job")[-1]["cluster"] == "c2"


def test_a_run_and_a_sweep_do_not_share_a_directory(cluster, tmp_path):
    sweep = tmp_path / "runs/run"
    sweep.mkdir(parents=True)
    (sweep / "sweep.sbatch").touch()
    with pytest.raises(ConfigError, match=r"is the directory of a sweep; choose another"):
        send(tmp_path)


def test_an_answer_that_names_no_job_keeps_the_directory(cluster, tmp_path):
    program(cluster / "sbatch", "echo accepted")
    with pytest.raises(ClusterError, match="does not say whether Slurm has taken the job"):
        send(tmp_path, code="installed")
    assert (tmp_path / "runs/run/job/job.sbatch").is_file()


def test_a_job_that_cannot_be_recorded_is_named(cluster, tmp_path):
    (tmp_path / "runs/run/job/submitted.jsonl").mkdir(parents=True)
    with pytest.raises(ClusterError, match=r"job 41 is submitted, but .* end it with `scancel 41`"):
        send(tmp_path, code="installed")


@pytest.mark.parametrize(("login", "site"), [(0o077, "027"), (0o022, "077"), (0o022, "007")])
def test_who_may_read_what_a_submission_writes(cluster, tmp_path, login, site):
    with umask(login):
        send(tmp_path, umask=site)
        assert os.umask(login) == login
    run = tmp_path / "runs/run"
    written = [run, *(path for path in run.rglob("*") if not path.is_symlink())]
    assert {run / "job/submitted.jsonl", run / "job/41_submission.sh"} <= set(written)
    full = {True: 0o777, False: 0o666}
    for path in written:
        assert path.stat().st_mode & 0o777 == full[path.is_dir()] & ~int(site, 8), path
    # Others have their runs in the parent.
    assert run.parent.stat().st_mode & 0o777 == 0o777 & ~(login & int(site, 8))


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_two_jobs_never_share_a_run_directory(cluster, tmp_path, state):
    send(tmp_path)
    with pytest.raises(ClusterError) as caught:
        send(tmp_path, run=queue(j41=state))
    for part in (f"job 41 is {state}", "scancel 41", "name="):
        assert part in str(caught.value)
    assert not (cluster / "script.42").exists()


def test_a_run_of_a_sweep_that_was_cut_off_is_found(cluster, tmp_path):
    send(tmp_path, "name='0'")
    (tmp_path / "runs/0/job/submitted.jsonl").unlink()
    with pytest.raises(ClusterError, match=r"its job 41_0 is RUNNING"):
        send(tmp_path, "name='0'", run=lambda _: f"41_0|RUNNING|{tmp_path}/runs/.x.sh\n")


def test_a_run_goes_on_with_a_new_job_whatever_else_is_in_the_queue(cluster, tmp_path):
    send(tmp_path)
    assert send(tmp_path, "name=other", run=queue(j41="RUNNING")) == ["42"]
    assert send(tmp_path, run=queue(j99="RUNNING")) == ["43"]
    assert [facts["job_id"] for facts in read_jobs(tmp_path / "runs/run/job")] == ["41", "43"]


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
    script = (cluster / "script.41").read_text().replace('"', "")
    directives = re.findall("^#SBATCH (.*)$", script, re.M)
    assert call.startswith(" ".join(directives))
    assert "--account=mine" in directives


def test_the_callers_job_does_not_travel(cluster, tmp_path, monkeypatch):
    left = ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SBATCH_GRES", "PMIX_RANK", "CUDA_VISIBLE_DEVICES")
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "OMP_PLACES", "MY_OWN")
    for name in (*left, *kept):
        monkeypatch.setenv(name, "7")
    send(tmp_path, pass_environment=["OMP_PLACES"])
    seen = (cluster / "environ").read_text().splitlines()
    assert {f"{name}=7" for name in kept} <= set(seen), "sbatch itself needs the first three"
    assert not [name for name in left if f"{name}=7" in seen]
    assert os.environ["SLURM_JOB_ID"] == "7", "the process keeps its own"


def test_the_job_of_another_cluster_is_seen(cluster, tmp_path):
    """A run of c1 is submitted to c2, where another job has the number 41."""
    asks = 'echo "CLUSTER: $SLURM_CLUSTERS"; cat "$LAB/on_$SLURM_CLUSTERS"'
    program(cluster / "squeue", asks)
    for name in ("c1", "c2"):
        (cluster / f"on_{name}").write_text("41|RUNNING|/elsewhere/x.sh\n")
    assert send(tmp_path, code="installed", run=ASK, cluster="c1") == ["41"]
    with pytest.raises(ClusterError, match=r"its job 41 is RUNNING.*scancel --clusters=c1 41"):
        send(tmp_path, code="installed", run=ASK, cluster="c2")
    (cluster / "on_c1").write_text("")
    assert send(tmp_path, code="installed", run=ASK, cluster="c2") == ["42"]


def test_the_directory_of_another_user(cluster, tmp_path, monkeypatch):
    # Root may write everywhere, and tests run as root in containers.
    def open_file(path, *rest):
        if str(path).endswith("lock.json"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    opened = os.open
    monkeypatch.setattr("verl_hpc.runs.lock.os.open", open_file)
    with pytest.raises(ConfigError, match=r"cannot write .*runs/run: .*Permission denied"):
        send(tmp_path, code="installed")
    assert not (cluster / "calls").exists()


def test_what_is_wrong_with_sbatch_is_not_blamed_on_the_directory(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("LONG", "x" * 200_000)  # more than Linux takes in one variable
    with pytest.raises(ClusterError, match=r"sbatch cannot be started: .*Argument list too long"):
        send(tmp_path)
    assert not (tmp_path / "runs").exists()


def fail_at(monkeypatch, function, call=1):
    """A quota is used up when submitit calls a function of the paths of its own files."""
    calls = []

    def fail(path, *rest, **named):
        if path.name.startswith(".submission_file"):
            calls.append(path)
        if len(calls) == call:
            raise OSError(122, "Disk quota exceeded", str(path))
        return there(path, *rest, **named)

    there = getattr(Path, function)
    monkeypatch.setattr(Path, function, fail)


BEFORE = r"cannot write .*runs/run: .*Disk quota exceeded"
WITHIN = r"Disk quota exceeded.*will run: 41\. End them with"
BEHIND = r"'Submitted batch job 41', but .*quota exceeded.*end the job with scancel"
QUOTAS = [("open", 1, ConfigError, BEFORE), ("open", 2, ConfigError, WITHIN)]
QUOTAS += [("rename", 1, ClusterError, BEHIND)]


@pytest.mark.parametrize(("function", "call", "error", "told"), QUOTAS)
def test_a_quota_that_is_used_up(cluster, tmp_path, monkeypatch, function, call, error, told):
    """Before sbatch, within a chain, and when Slurm has the job."""
    fail_at(monkeypatch, function, call)
    with pytest.raises(error, match=told):
        send(tmp_path, code="installed", restarts={"by": "chain", "most": 2})
    is_taken = told != BEFORE
    assert (cluster / "calls").exists() is (tmp_path / "runs").exists() is is_taken
    assert (tmp_path / "runs/run/job/job.sbatch").is_file() is is_taken


def test_a_lock_that_cannot_be_read_is_no_submission(cluster, tmp_path):
    (tmp_path / "runs/run/job/lock.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"lock\.json: cannot be read .*delete it"):
        send(tmp_path, code="installed")


def test_two_submissions_at_once(cluster, tmp_path):
    (tmp_path / "runs/run/job").mkdir(parents=True)
    asked = request(tmp_path)
    with only_submission(asked, asked.run_directory, asked.run_directory / "job"):
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
