"""What the doctor makes of Slurm's answers, beside what login_in_words.txt has."""

import pytest

from tests.unit.cluster.requests import profile, request
from verl_hpc.cluster.job import plan_job
from verl_hpc.doctor.slurm import (
    check_account,
    check_mpi,
    check_partition,
    check_plugin,
    check_submission,
    check_tools,
)

MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: "
MPI += "pmix_v3,pmix_v4\n"
PARTITIONS = (
    "PartitionName=gpu AllowAccounts=ALL Default=YES MaxNodes=64 MaxTime=1-00:00:00 State=UP "
    "TotalNodes=100\n"
    "PartitionName=down Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DRAIN TotalNodes=2\n"
)
ANSWERS = {
    "srun --mpi=list": MPI,
    "srun --help": "  --container-image=x",
    "scontrol --oneliner show partition": PARTITIONS,
    "scontrol show config": "ClusterName = LAB\n",
    "sinfo": "64|gpu:8\n",
    "sacctmgr --noheader --parsable2 show assoc": "lab|a1|normal,long\nlab|a2|\nother|a9|long\n",
    "sacctmgr --noheader --parsable2 show qos": "normal|\nlong|3-00:00:00\n",
    "sbatch": "",
}


def look(directory, changed, nodes=2, time="60", **fields):
    """Verdicts by check, of a cluster whose answers are changed."""
    answers = ANSWERS | changed

    def run(words):
        command = " ".join(words)
        return next(text for start, text in answers.items() if command.startswith(start))

    asked = request(directory, site=profile(directory, **fields), nodes=nodes, time=time)
    job = plan_job(asked)
    verdicts = [check_mpi(job, run), *check_partition(asked, run), *check_account(asked, run)]
    verdicts += [check_plugin(asked.profile, run), check_submission(job, run)]
    return {verdict.check: verdict for verdict in verdicts if verdict is not None}


PYXIS = {"container": {"kind": "pyxis", "image": "a.sqsh"}}
GPU = {"partition": "gpu"}
SAID = [
    ({"mpi": "pmix_v4"}, {}, "mpi", "ok", "mpi: pmix_v4; "),
    # JSC's psslurm, for one, has plugins of other names, and knows which it wants.
    ({"mpi": "cray_shasta", "drop_directives": ["mpi"]}, {}, "mpi", "ok", "srun's own default"),
    ({"srun_args": ["--mpi=pspmi"]}, {}, "mpi", "fails", "mpi: pspmi, but"),
    ({"partition": "gup"}, {}, "partition", "fails",
     "gup: none such; set partition in the site profile: gpu, down"),
    ({"partition": "down"}, {}, "partition", "fails", "DRAIN"),
    (GPU | {"nodes": 65}, {}, "partition", "fails", "ask for fewer than --nodes 65"),
    (GPU | {"time": "25:00:00"}, {}, "partition", "fails", "ask for less than --time 25:00:00"),
    *((fields, {"sinfo": sinfo}, "nodes", state, todo)
      for fields, state, todo in ((GPU, "fails", "numbers"), ({}, "unknown", "sbatch's own answer"))
      for sinfo in ("16|gpu:8\n", "64|gpu:2\n", "64|(null)\n16|gpu:8\n", "")),
    ({}, {}, "account", "ok", "yours are a1, a2"),
    *(({"account": other}, {}, "account", "fails", "yours are a1, a2") for other in ("a3", "a9")),
    ({}, {"sacctmgr --noheader --parsable2 show assoc": ""}, "account", "unknown", "no account of"),
    ({"account": "a1", "qos": "long"}, {}, "qos", "ok", "long: at most 3-00:00:00"),
    ({"qos": "normal", "time": "4-00:00:00"}, {}, "qos", "ok", "normal"),
    (PYXIS, {}, "pyxis", "ok", "srun takes --container-image"),
    (PYXIS, {"srun --help": "--mpi"}, "pyxis", "fails", "srun has no --container-image"),
    ({}, {}, "sbatch", "ok", "takes --job-name=run --nodes=2 --ntasks-per-node=4 "),
]  # fmt: skip
"""Fields of the site and of the job, changed answers, a check, its state, and what it says."""


@pytest.mark.parametrize(("fields", "changed", "check", "state", "words"), SAID)
def test_what_the_doctor_says(tmp_path, fields, changed, check, state, words):
    verdict = look(tmp_path, changed, **fields)[check]
    assert verdict.state == state
    assert words in str(verdict)
    assert bool(verdict.todo) or state != "fails", "every failure has a next step"


def test_slurm_that_is_not_here_and_a_site_without_pyxis(monkeypatch, tmp_path):
    assert set(look(tmp_path, {})) == {"mpi", "partition", "nodes", "account", "sbatch"}
    monkeypatch.setenv("PATH", str(tmp_path))
    verdict = check_tools()
    assert verdict.state == "fails"
    assert verdict.found.startswith("not on PATH: sbatch, srun, ")
