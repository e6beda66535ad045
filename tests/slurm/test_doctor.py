"""The doctor on real nodes: verdicts, a node that is sick, and what submissions make of it."""

import json
import subprocess
import sys

import pytest

from tests.slurm.runs import ROOT, write_run
from verl_hpc.testing.slurm_lab.root import as_root

SIZES = ["site.tasks_per_node=1", "site.cores_per_node=1", f"site.python={sys.executable}"]


SITE = ["--cluster", ROOT / "slurm/lab.yaml"]


def test_a_login_node(verl_hpc):
    done = verl_hpc("doctor", *SITE, *SIZES)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}
    # The lab has no accounting.
    assert (found.pop("account"), set(found.values())) == ("unknown", {"ok"})
    assert {"slurm", "mpi", "partition", "nodes", "sbatch", "python"} <= set(found)


def test_a_request_that_the_cluster_cannot_take(verl_hpc):
    done = verl_hpc("doctor", *SITE, "--nodes", "9", *SIZES)
    assert done.returncode == 1
    assert "fails    sbatch         allocation failure: Requested node config" in done.stdout


def spoil(lab, node, directory):
    """Make a directory read-only on one node, as a disk that has failed."""
    slurmd = lab.processes_of(node)[0]
    enter = ["nsenter", f"--target={slurmd}", "--mount"]
    with as_root():
        subprocess.run([*enter, "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", directory], check=True)
    return [*enter, "umount", directory]


def test_a_sick_node_is_found_and_left_out(lab, verl_hpc, model, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [*SIZES, f"site.node_scratch={scratch}", "site.extra_directives=[--exclude=n3]"]
    heal = spoil(lab, "n1", scratch)
    try:
        done = verl_hpc("doctor", *SITE, "--nodes", "3", "--json", *words)
    finally:
        with as_root():
            subprocess.run(heal, check=True)
    assert done.returncode == 1, done.stdout + done.stderr
    tree = json.loads(done.stdout)
    by_check = {verdict["check"]: verdict for verdict in tree["verdicts"]}
    assert [node["node"] for node in tree["failing_nodes"]] == ["n1"]
    assert by_check["scratch"]["nodes"] == ["n1"]
    assert "n1: Read-only file system" in by_check["scratch"]["found"]
    for check in ("ranks", "cores", "clocks", "pairs", "all-reduce"):
        assert by_check[check]["state"] == "ok", by_check[check]
    assert "3 ranks on 3 nodes: n0, n1, n2" in by_check["ranks"]["found"]
    assert "in 3 pairs of nodes" in by_check["pairs"]["found"]
    assert "n1 is left out of submissions" in done.stderr

    config = write_run(tmp_path, model)
    dry = verl_hpc("submit", "--config", config, *SITE, "--nodes", "2", "--time", "5", "--dry-run")
    assert "\n#SBATCH --exclude=n1\n" in dry.stdout
    # Held: only where it may run is of interest.
    held = ["site.tasks_per_node=1", "site.extra_directives=[--hold]"]
    sent = verl_hpc("submit", "--config", config, *SITE, "--nodes", "2", "--time", "5", *held)
    assert "left out: n1 (" in sent.stdout, sent.stderr
    job = sent.stdout.split()[1].rstrip(":")
    assert "ExcNodeList=n1 " in lab.run("scontrol", "--oneliner", "show", "job", job)
    lab.run("scancel", job)

    again = verl_hpc("doctor", *SITE, "--nodes", "2", *words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 ranks on 2 nodes: n0, n2" in again.stdout
    measured = next(word for word in again.stderr.split() if word.endswith(".json"))
    figures = json.loads((tmp_path / measured).read_text())
    assert (figures["nodes"], figures["device"], figures["network_gb_s"] > 0) == (2, "cpu", True)
    plan = ["plan", "--config", config, "--nodes", "2", *SITE, *SIZES, "--measured", measured]
    told = json.loads(verl_hpc(*plan, "--json").stdout)
    limit = int(figures["host_memory_gib"] * 2**30)
    assert {phase["limit_bytes"] for phase in told["phases"]} == {limit}
    assert f"network {figures['network_gb_s']:.2f} GB/s a rank" in " ".join(told["assumptions"])
    assert verl_hpc("doctor", "--forget", "n1").returncode == 0


@pytest.mark.slow
def test_a_job_that_is_held_is_told_and_cancelled(lab, verl_hpc):
    """Slurm is asked every 30 s."""
    held = "--directive=--hold"
    done = verl_hpc("doctor", *SITE, "--nodes", "1", *SIZES, held)
    assert done.returncode != 0, done.stdout + done.stderr
    assert "does not start by itself, and is cancelled (JobHeldUser: you hold it)" in done.stderr
    job = done.stderr.partition("job ")[2].partition(":")[0]
    assert "JobState=CANCELLED " in lab.run("scontrol", "--oneliner", "show", "job", job)


def test_inside_a_step_and_a_floor_that_no_pair_reaches(lab, verl_hpc, tmp_path):
    """The doctor is started by hand below srun; all pairs are too slow, so no node is to blame."""
    command = [sys.executable, "-m", "verl_hpc", "doctor", "--nodes", "2", *SITE]
    floor = "site.preflight.min_bandwidth_gb_s=1000000"
    srun = ["srun", "--nodes=2", "--mpi=pmi2", *map(str, command), *SIZES, floor]
    given = {"cwd": tmp_path, "env": lab.variables, "timeout": 240}
    done = subprocess.run(srun, capture_output=True, text=True, **given)
    assert done.returncode != 0
    for words in ("ok       ranks", "fails    pairs", "all are slow", "fails    all-reduce"):
        assert words in done.stdout
