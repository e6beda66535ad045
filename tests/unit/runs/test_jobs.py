"""The cluster of a run's jobs."""

from tests.unit.cli.status_runs import fake_slurm
from verl_hpc.runs.jobs import cluster_of, record_job
from verl_hpc.runs.queue import ask_slurm
from verl_hpc.slurm.tools import scancel

SQUEUE = """
[ "$SLURM_CLUSTERS" = c2 ] && echo "CLUSTER: c2" >&2 && echo "45|RUNNING|None|N/A"
exit 0
"""


def test_a_run_is_looked_for_where_it_was_submitted(tmp_path, monkeypatch):
    fake_slurm(tmp_path, monkeypatch, squeue=SQUEUE, sacct="exit 0")
    run = tmp_path / "run"
    (run / "job").mkdir(parents=True)
    assert cluster_of(run / "job") is None
    record_job(run / "job", {"job_id": "44"})
    assert cluster_of(run / "job") is None
    record_job(run / "job", {"job_id": "45", "cluster": "c2"})
    assert cluster_of(run / "job") == "c2"
    assert ask_slurm(run, ["45"]).jobs["45"].state == "RUNNING"
    assert scancel(None, "1", "2") == "scancel 1 2"
    assert scancel("c2", "1") == "scancel --clusters=c2 1"
