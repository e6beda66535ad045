"""Asking Slurm, with recorded answers."""

import pytest

from verl_hpc.errors import ClusterError
from verl_hpc.slurm.tools import (
    job_details,
    longest_of_qos,
    mpi_plugins,
    my_jobs,
    my_scripts,
    node_kinds,
    on_cluster,
    partitions,
    past_states,
    run_tool,
)


def answering(text, asked=None):
    def run(words):
        if asked is not None:
            asked.append(list(words))
        return text

    return run


def test_the_queue():
    asked = []
    answer = "  12 PENDING\n13 RUNNING\n14 COMPLETING \n"
    jobs = {"12": "PENDING", "13": "RUNNING", "14": "COMPLETING"}
    assert my_jobs(answering(answer, asked)) == jobs
    assert asked == [["squeue", "--me", "--array", "--noheader", "--format=%i %T"]]
    assert my_jobs(answering("")) == {}


def test_scripts_in_the_queue():
    answer = "12|PENDING|/runs/a/job/.submission_file_1.sh\n13_2|RUNNING|/runs/x|y.sh\n"
    assert my_scripts(answering(answer)) == {
        "12": ("PENDING", "/runs/a/job/.submission_file_1.sh"),
        "13_2": ("RUNNING", "/runs/x|y.sh"),
    }


def test_accounting():
    asked = []
    answer = "12|COMPLETED\n13|CANCELLED by 1000\n"
    states = past_states(["12", "13"], answering(answer, asked))
    assert states == {"12": "COMPLETED", "13": "CANCELLED"}
    assert asked[0][-1] == "--jobs=12,13"


def test_details_of_a_job():
    answer = (
        "JobId=13 JobName=run UserId=root(0) JobState=RUNNING Reason=None Restarts=2 "
        "EndTime=2026-11-21T11:59:29 Command=/a/b.sbatch Comment=a=b \n"
    )
    expected = {"JobState": "RUNNING", "Restarts": "2", "EndTime": "2026-11-21T11:59:29"}
    expected["Comment"] = "a=b"
    assert expected.items() <= job_details("13", answering(answer)).items()


def test_mpi_plugins_and_their_versions():
    new = "MPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: x,y"
    assert mpi_plugins(answering(new)) == ["pmix", "pmi2", "x", "y"]
    assert mpi_plugins(answering("srun: MPI types are...\nsrun: pmi2\n")) == ["pmi2"]


def test_kinds_of_nodes():
    for gres, gpus in (
        ("(null)", 0),
        ("gpu:8(S:0-1)", 8),
        ("gpu:h100:4(S:0),nvme:1", 4),
        ("gpu:a100:4,gpu:v100:2", 6),
        ("notgpu:3", 0),
    ):
        assert node_kinds("gpu", answering(f"64+|{gres}\n64|{gres}\n")) == [(64, gpus)]


def test_limits_of_qualities_of_service():
    run = answering("normal|\nlong|3-00:00:00\n")
    assert [longest_of_qos(name, run) for name in ("long", "normal")] == ["3-00:00:00", ""]
    with pytest.raises(ClusterError, match="no QOS x"):
        longest_of_qos("x", run)


# The programs themselves


def fake(directory, name, body):
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("scontrol", "", "squeue is not on PATH.*dry run works anywhere"),
        ("squeue", "echo 'it is down' >&2; exit 1", "squeue .*: it is down"),
        ("squeue", "exec /bin/sleep 30", "squeue did not answer within"),
        ("squeue", None, "squeue cannot be started .Exec format error.; give it"),
    ],
    ids=["not there", "fails", "hangs", "of another machine"],
)
def test_a_tool_that_gives_no_answer_says_why(tmp_path, monkeypatch, name, body, message):
    fake(tmp_path, name, body)
    if body is None:
        (tmp_path / name).write_bytes(b"\x7fELF of another machine")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("verl_hpc.slurm.tools._TIMEOUT_S", 0.2 if "sleep" in str(body) else 60.0)
    with pytest.raises(ClusterError, match=message):
        my_jobs()


@pytest.mark.parametrize(
    ("body", "words", "printed"),
    [('echo "$@"', ["a", "b c"], "a b c\n"), ("printf 'L\\374fter\\n'", [], "L\ufffdfter\n")],
    ids=["words", "another encoding"],
)
def test_what_a_tool_prints(tmp_path, monkeypatch, body, words, printed):
    fake(tmp_path, "scontrol", body)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_tool(["scontrol", *words]) == printed


def test_a_users_own_formats_and_filters_are_left_aside(tmp_path, monkeypatch):
    fake(tmp_path, "squeue", 'env | grep -E "^(SQUEUE|SLURM)" | sort')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert run_tool(["squeue"]) == "SLURM_CONF=/etc/slurm.conf\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sacct", "--noheader"], "sacct --noheader --clusters=c2"),
        (["sreport", "cluster", "x"], "sreport cluster x Clusters=c2"),
        (["sacctmgr", "show", "associations"], "sacctmgr show associations Clusters=c2"),
        (["sacctmgr", "show", "qos"], "sacctmgr show qos"),
        (["squeue", "--me"], "squeue --me"),
    ],
)
@pytest.mark.parametrize("by", ["the profile", "the user"])
def test_programs_that_read_no_variable_are_told_the_cluster(
    tmp_path, monkeypatch, words, told, by
):
    fake(tmp_path, words[0], f'echo "{words[0]} $* on $SLURM_CLUSTERS"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    assert run_tool(words) == f"{' '.join(words)} on \n"
    if by == "the user":
        monkeypatch.setenv("SLURM_CLUSTERS", "c2")
    asked = on_cluster("c2" if by == "the profile" else None)
    assert asked(words) == f"{told} on c2\n"


def test_the_name_of_a_cluster_is_no_partition():
    text = "CLUSTER: c2\nPartitionName=gpu State=UP MaxTime=UNLIMITED\n"
    assert [found["PartitionName"] for found in partitions(answering(text))] == ["gpu"]
