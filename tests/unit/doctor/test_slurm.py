"""What the doctor makes of Slurm's answers, which are recorded."""

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
from verl_hpc.errors import ClusterError
from verl_hpc.slurm.tools import associations, longest_of_qos, mpi_plugins, node_kinds

MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: "
MPI += "pmix_v3,pmix_v4\n"
PARTITIONS = (
    "PartitionName=gpu AllowAccounts=ALL Default=YES MaxNodes=64 MaxTime=1-00:00:00 State=UP "
    "TotalNodes=100\n"
    "PartitionName=down Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DRAIN TotalNodes=2\n"
)


def answers(**texts):
    """A cluster that gives these answers, by program; others say that they cannot."""

    def run(words):
        text = texts.get(words[0])
        if text is None or isinstance(text, ClusterError):
            raise text or ClusterError(f"{words[0]}: context\n{words[0]}: no answer")
        return text(words) if callable(text) else text

    return run


def refuses(reason):
    def run(words):
        raise ClusterError(f"{' '.join(words)}: {reason}")

    return run


def states(verdicts):
    return [(v.check, v.state) for v in verdicts]


def test_plugins_and_their_versions():
    assert mpi_plugins(answers(srun=MPI)) == ["pmix", "none", "pmi2", "pmix_v3", "pmix_v4"]


@pytest.mark.parametrize(
    "mpi, state", [("pmi2", "ok"), ("pmix_v4", "ok"), ("cray_shasta", "fails")]
)
def test_the_mpi_of_the_profile(tmp_path, mpi, state):
    job = plan_job(request(tmp_path, site=profile(tmp_path, mpi=mpi)))
    verdict = check_mpi(job, answers(srun=MPI))
    assert verdict.state == state
    assert f"mpi: {mpi}" in verdict.found
    assert "pmix, none, pmi2" in verdict.found
    assert bool(verdict.todo) == (state == "fails")


def test_an_srun_that_is_given_no_plugin_takes_its_own(tmp_path):
    """JSC's psslurm, for one, has plugins of other names, and knows which it wants."""
    site = profile(tmp_path, mpi="cray_shasta", drop_directives=["mpi"])
    assert check_mpi(plan_job(request(tmp_path, site=site)), answers(srun=MPI)).state == "ok"
    site = profile(tmp_path, mpi="pmi2", srun_args=["--mpi=pspmi"])
    assert check_mpi(plan_job(request(tmp_path, site=site)), answers(srun=MPI)).state == "fails"


def test_a_question_without_an_answer_is_unknown(tmp_path):
    asked = request(tmp_path)
    silent = answers()
    verdicts = [check_mpi(plan_job(asked), silent)]
    verdicts += [*check_partition(asked, silent), *check_account(asked, silent)]
    assert states(verdicts) == [(name, "unknown") for name in ("mpi", "partition", "account")]
    assert verdicts[0].found == "srun: no answer"


def test_slurm_that_is_not_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    verdict = check_tools()
    assert verdict.state == "fails"
    assert verdict.found.startswith("not on PATH: sbatch, srun, ")


def test_kinds_of_nodes():
    for gres, gpus in (
        ("(null)", 0),
        ("gpu:8(S:0-1)", 8),
        ("gpu:h100:4(S:0),nvme:1", 4),
        ("gpu:a100:4,gpu:v100:2", 6),
        ("notgpu:3", 0),
    ):
        assert node_kinds("gpu", answers(sinfo=f"64+|{gres}\n64|{gres}\n")) == [(64, gpus)]


def partition(directory, sinfo="64|gpu:8\n", nodes=2, time="60", **fields):
    asked = request(directory, site=profile(directory, **fields), nodes=nodes, time=time)
    return list(check_partition(asked, answers(scontrol=PARTITIONS, sinfo=sinfo)))


def test_a_partition_that_fits(tmp_path):
    verdicts = partition(tmp_path)
    assert states(verdicts) == [("partition", "ok"), ("nodes", "ok")]
    assert verdicts[0].found == "gpu: UP, 100 nodes; a job at most 64 nodes and 1-00:00:00"
    assert "nodes of gpu have 64 cores and 8 GPUs" in verdicts[1].found


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"partition": "gup"}, "gup: none such; set partition in the site profile: gpu, down"),
        ({"partition": "down"}, "DRAIN"),
        ({"partition": "gpu", "nodes": 65}, "ask for fewer than --nodes 65"),
        ({"partition": "gpu", "time": "25:00:00"}, "ask for less than --time 25:00:00"),
    ],
)
def test_a_partition_that_does_not(tmp_path, fields, words):
    verdict = partition(tmp_path, **fields)[0]
    assert (verdict.check, verdict.state) == ("partition", "fails")
    assert words in str(verdict)


@pytest.mark.parametrize("sinfo", ["16|gpu:8\n", "64|gpu:2\n", "64|(null)\n16|gpu:8\n", ""])
def test_nodes_that_are_not_like_the_profiles(tmp_path, sinfo):
    assert states(partition(tmp_path, sinfo, partition="gpu"))[1] == ("nodes", "fails")
    by_default = partition(tmp_path, sinfo)[1]
    assert (by_default.check, by_default.state) == ("nodes", "unknown")
    assert "sbatch's own answer" in by_default.todo


def accounting(words):
    if "associations" in words:
        return "lab|a1|normal,long\nlab|a2|\nother|a9|long\n"
    if words[0] == "scontrol":
        return "ClusterName = LAB\n"
    return "normal|\nlong|3-00:00:00\n"


def account(directory, run=None, time="60", **fields):
    asked = request(directory, site=profile(directory, **fields), time=time)
    return list(check_account(asked, run or answers(sacctmgr=accounting, scontrol=accounting)))


def test_associations():
    run = answers(sacctmgr=accounting, scontrol=accounting)
    assert associations("me", run) == [("a1", ["normal", "long"]), ("a2", [])]
    assert [longest_of_qos(name, run) for name in ("long", "normal")] == ["3-00:00:00", ""]
    with pytest.raises(ClusterError, match="no QOS x"):
        longest_of_qos("x", run)


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, [("account", "ok")]),
        ({"account": "a1"}, [("account", "ok")]),
        ({"account": "a3"}, [("account", "fails")]),
        ({"account": "a9"}, [("account", "fails")]),
        ({"account": "a1", "qos": "long"}, [("account", "ok"), ("qos", "ok")]),
        ({"account": "a1", "qos": "short"}, [("account", "ok"), ("qos", "fails")]),
        ({"qos": "long", "time": "4-00:00:00"}, [("account", "ok"), ("qos", "fails")]),
        ({"qos": "normal", "time": "4-00:00:00"}, [("account", "ok"), ("qos", "ok")]),
    ],
)
def test_accounts_and_qualities_of_service(tmp_path, fields, expected):
    assert states(account(tmp_path, **fields)) == expected


def test_an_account_that_is_not_yours_names_those_that_are(tmp_path):
    (verdict,) = account(tmp_path, account="a3")
    assert "yours are a1, a2" in verdict.todo


def test_accounting_that_knows_nobody(tmp_path):
    assert states(account(tmp_path, answers(sacctmgr=""))) == [("account", "unknown")]


def test_pyxis_is_looked_for_where_it_is_needed(tmp_path):
    assert check_plugin(profile(tmp_path), answers()) is None
    pyxis = profile(tmp_path, container={"kind": "pyxis", "image": "a.sqsh"})
    assert check_plugin(pyxis, answers(srun="  --container-image=x")).state == "ok"
    assert check_plugin(pyxis, answers(srun="--mpi")).state == "fails"


def test_sbatch_is_asked_with_the_jobs_own_words(tmp_path):
    asked = []
    job = plan_job(request(tmp_path))
    assert check_submission(job, lambda words: asked.append(list(words)) or "").state == "ok"
    (words,) = asked
    assert words[:2] == ["sbatch", "--test-only"]
    for word in ("--nodes=2", "--gpus-per-node=4", "--time=24:00:00", "--signal=USR2@900"):
        assert word in words


def test_sbatch_that_refuses_says_why(tmp_path):
    verdict = check_submission(plan_job(request(tmp_path)), refuses("allocation failure: no"))
    assert verdict.state == "fails"
    assert verdict.found.startswith("allocation failure: no, with --job-name=run ")
