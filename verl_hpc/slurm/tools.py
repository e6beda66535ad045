"""Asking Slurm: scontrol, squeue and sacct as functions. Nothing else here starts a program of it.

Questions are asked once per call and never polled; a login node's controller serves everybody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from verl_hpc.errors import ClusterError
from verl_hpc.slurm.programs import run_program

Runner = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed; tests put their own in."""

_TIMEOUT_S = 60.0


def run_tool(words: Sequence[str], cluster: str | None = None) -> str:
    """Run one of Slurm's programs.

    Args:
        cluster: to ask, where login nodes serve several; None asks their own.

    Returns:
        What it printed to standard output.

    Raises:
        ClusterError: it is not there, fails, or does not answer within a minute.
    """
    return run_program(
        of_cluster(words, cluster),
        _TIMEOUT_S,
        if_missing=": this is no node of a Slurm cluster, or its module is not loaded; log in to "
        "one (a dry run works anywhere)",
        if_slow="; is the controller overloaded? Try again later",
        variables={} if cluster is None else {"SLURM_CLUSTERS": cluster},
    )


def of_cluster(words: Sequence[str], cluster: str | None) -> list[str]:
    """Name the cluster to a program that reads Slurm's accounts; SLURM_CLUSTERS tells the others.

    Args:
        words: a program and its arguments.
        cluster: None takes the user's own SLURM_CLUSTERS.
    """
    name = cluster or os.environ.get("SLURM_CLUSTERS")
    options = {"sacct": f"--clusters={name}", "sreport": f"Clusters={name}"}
    options |= {"sacctmgr": f"Clusters={name}"} if "associations" in words else {}
    return [*words, options[words[0]]] if name and words[0] in options else list(words)


def on_cluster(cluster: str | None) -> Runner:
    """Asks one cluster; the login nodes' own if None."""
    return partial(run_tool, cluster=cluster)


def scancel(cluster: str | None, *job_ids: str) -> str:
    """The command that ends jobs, for people."""
    where = [] if cluster is None else [f"--clusters={cluster}"]
    return " ".join(["scancel", *where, *job_ids])


def cancel(job_id: str, run: Runner = run_tool) -> None:
    """End a job, which may still wait in the queue."""
    run(["scancel", job_id])


def my_jobs(run: Runner = run_tool) -> dict[str, str]:
    """State of each of the user's jobs in the queue, by job id: {"4711": "PENDING"}.

    The runs of an array are 4711_0, 4711_1, ...
    """
    return _pairs(run(["squeue", "--me", "--array", "--noheader", "--format=%i %T"]))


def my_scripts(run: Runner = run_tool) -> dict[str, tuple[str, str]]:
    """State and path of the batch script of each of the user's jobs in the queue, by job id."""
    text = run(["squeue", "--me", "--array", "--noheader", "--format=%i|%T|%o"])
    rows = (line.strip().split("|", 2) for line in text.splitlines() if line.count("|") > 1)
    return {job_id: (state, script) for job_id, state, script in rows}


def past_states(job_ids: Iterable[str], run: Runner = run_tool) -> dict[str, str]:
    """What accounting knows of jobs, by job id; needs a cluster with slurmdbd.

    Raises:
        ClusterError: there is no accounting.
    """
    jobs = ",".join(job_ids)
    words = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
    # "CANCELLED by 1000" is CANCELLED.
    return _pairs(run([*words, f"--jobs={jobs}"]).replace("|", " "))


def job_details(job_id: str, run: Runner = run_tool) -> dict[str, str]:
    """The fields of `scontrol show job`: JobState, EndTime, NodeList, Restarts, ..."""
    return _fields(run(["scontrol", "--oneliner", "show", "job", job_id]))


def mpi_plugins(run: Runner = run_tool) -> list[str]:
    """What `srun --mpi=` takes here."""
    lines = run(["srun", "--mpi=list"]).replace("srun: ", "").splitlines()
    # A heading has several words, a plugin is one; versions of one come after a colon.
    plugins = [line.strip() for line in lines if len(line.split()) == 1]
    versions = [line.partition(":")[2] for line in lines if "versions available:" in line]
    return [*plugins, *" ".join(versions).replace(",", " ").split()]


def partitions(run: Runner = run_tool) -> list[dict[str, str]]:
    """The fields of every partition that the user may see: PartitionName, State, MaxTime, ..."""
    lines = run(["scontrol", "--oneliner", "show", "partition"]).splitlines()
    return [_fields(line) for line in lines if "PartitionName=" in line]


def node_kinds(partition: str, run: Runner = run_tool) -> list[tuple[int, int]]:
    """(cores, GPUs) of each kind of node in a partition."""
    words = ["sinfo", "--noheader", f"--partition={partition}", "--format=%c|%G"]
    rows = [line.split("|") for line in run(words).splitlines() if "|" in line]
    return sorted({(int(cores.rstrip("+")), _gpus(gres)) for cores, gres in rows})


def associations(user: str, run: Runner = run_tool) -> list[tuple[str, list[str]]]:
    """(account, its qualities of service) of each association of a user.

    Raises:
        ClusterError: there is no accounting.
    """
    rows = association_rows(f"user={user}", "Account,QOS", run)
    return [(account, qos.split(",") if qos else []) for account, qos in rows]


def association_rows(
    whose: str, fields: str, run: Runner = run_tool, only_defaults: bool = False
) -> list[list[str]]:
    """What `sacctmgr show associations` has of the cluster that is asked, in `fields`.

    slurmdbd tells the associations of all its clusters to whoever names none.

    Args:
        only_defaults: ask for those of users' default accounts alone.

    Raises:
        ClusterError: there is no accounting, or the cluster does not tell its name.
    """
    words = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", whose]
    words += ["onlydefaults"] if only_defaults else []
    text = run([*words, f"format=Cluster,{fields}"])
    rows = [line.split("|") for line in text.splitlines() if "|" in line]
    here = cluster_setting("ClusterName", run) if rows else None
    if rows and here is None:
        raise ClusterError("scontrol show config: it names no ClusterName to look for in sacctmgr")
    return [row[1:] for row in rows if here is not None and row[0].lower() == here.lower()]


def cluster_setting(name: str, run: Runner = run_tool) -> str | None:
    """A setting of slurm.conf that is one word; None where the cluster has none of that name.

    Raises:
        ClusterError: the controller does not answer.
    """
    text = run(["scontrol", "show", "config"])
    found = re.search(rf"^{name}\s*=\s*(\S+)", text, re.MULTILINE)
    return found.group(1) if found else None


def longest_of_qos(qos: str, run: Runner = run_tool) -> str:
    """The time limit of a quality of service in Slurm's notation; "" if it has none.

    Raises:
        ClusterError: there is no accounting, or no such quality.
    """
    words = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", qos, "format=Name,MaxWall"]
    for line in run(words).splitlines():
        name, _, limit = line.partition("|")
        if name == qos:
            return limit
    raise ClusterError(f"sacctmgr knows no QOS {qos}")


def _gpus(gres: str) -> int:
    """GPUs of `gpu:8(S:0-1)`, `gpu:h100:4,nvme:1` or `(null)`."""
    return sum(int(number) for number in re.findall(r"\bgpu:(?:[^:,()]+:)?(\d+)", gres))


def _fields(line: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in line.split() if "=" in word)


def _pairs(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 1}
