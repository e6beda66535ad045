"""Which cluster the jobs of a run are on."""

from verl_hpc.runs.jobs import cluster_of, record_job
from verl_hpc.runs.queue import ask_slurm
from verl_hpc.slurm.tools import scancel

SQUEUE = """#!/bin/sh
[ "$SLURM_CLUSTERS" = c2 ] && echo "CLUSTER: c2" >&2 && echo "45|RUNNING|None|N/A"
exit 0
"""


def test_a_run_is_looked_for_where_it_was_submitted(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "squeue").write_text(SQUEUE)
    (tools / "sacct").write_text("#!/bin/sh\nexit 0\n")
    for name in ("squeue", "sacct"):
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    run = tmp_path / "run"
    (run / "job").mkdir(parents=True)
    assert cluster_of(run / "job") is None
    record_job(run / "job", {"job_id": "44"})
    assert cluster_of(run / "job") is None
    record_job(run / "job", {"job_id": "45", "cluster": "c2"})
    assert cluster_of(run / "job") == "c2"
    assert ask_slurm(run, ["45"]).jobs["45"].state == "RUNNING"


def test_the_command_that_ends_jobs():
    assert scancel(None, "1", "2") == "scancel 1 2"
    assert scancel("c2", "1") == "scancel --clusters=c2 1"
