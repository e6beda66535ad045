"""Slurm's accounts: what sacct, sacctmgr and sreport of real clusters print.

sacct.txt is what sacct 22.05.8 of the virtual cluster printed of a job that was requeued (2), an
array (3), a chain (4, 5) and a heterogeneous job (6), with an energy meter on each node.
"""

import time
from pathlib import Path

import pytest

from tests.unit.slurm.test_tools import fake
from verl_hpc.errors import ClusterError
from verl_hpc.slurm.accounting import (
    IN_THE_QUEUE,
    NOT_ELIGIBLE,
    account_limits,
    account_use,
    accounts_of,
    default_account,
    energy_meter,
    job_lives,
    parse_lives,
    partition_lives,
    run_accounting,
)

RECORDED = Path(__file__).with_name("sacct.txt").read_text()
CONFIG = """\
AccountingStoreFlags    = (null)
AcctGatherEnergyType    = acct_gather_energy/ipmi
ClusterName             = lab
"""


def row(**changes):
    """A line of sacct about a job of two hours on 2 nodes with 4 GPUs each."""
    fields = {
        "job": "7", "state": "COMPLETED", "submit": "1000", "eligible": "1000", "start": "1600",
        "elapsed": "7200", "nodes": "2", "tres": "billing=8,cpu=64,gres/gpu=8,node=2",
        "energy": "", "reason": "None", "limit": "180",
    }  # fmt: skip
    assert set(changes) <= set(fields)
    return "|".join((fields | changes).values())


def one(**changes):
    (life,) = parse_lives(row(**changes))
    return life


def test_every_life_of_a_requeued_job_counts():
    first, second = (life for life in parse_lives(RECORDED) if life.job_id == "2")
    assert (first.state, first.elapsed_s, first.gpus, first.nodes) == ("REQUEUED", 7, 4, 2)
    assert (second.state, second.elapsed_s) == ("COMPLETED", 20)
    assert second.waits(2e9) == {"BeginTime": 6.0}


def test_energy_of_a_job_without_a_sum_is_that_of_its_steps_and_not_of_the_batch_step_as_well():
    first, second = (life for life in parse_lives(RECORDED) if life.job_id == "2")
    assert (first.joules, second.joules) == (2300.0, 5966.0)


def test_arrays_chains_and_heterogeneous_jobs():
    lives = parse_lives(RECORDED)
    array = [life for life in lives if life.job_id.startswith("3_")]
    assert [life.job_id for life in array] == ["3_0", "3_1", "3_2"]
    waits = [life.waits(2e9) for life in array[1:]]
    assert waits == [{"JobArrayTaskLimit": seconds} for seconds in (5.0, 10.0)]
    (link,) = (life for life in lives if life.job_id == "5")
    assert link.waits(2e9) == {"Dependency": 9.0}
    parts = [life for life in lives if life.job_id == "6"]
    assert [(life.gpus, life.joules) for life in parts] == [(1, 1207.0), (1, 903.0)]


@pytest.mark.parametrize(
    "tres, gpus",
    [
        ("cpu=8,gres/gpu=4", 4),
        ("cpu=8,gres/gpu:a100=4", 4),
        ("cpu=8,gres/gpu=4,gres/gpu:a100=4", 4),
        ("cpu=8,gres/gpu:a100=4,gres/gpu:h100=2,mem=10G", 6),
        ("cpu=8,gres/gpumem=80G", 0),
        ("", 0),
    ],
)
def test_gpus_of_a_job(tres, gpus):
    assert one(tres=tres).gpus == gpus


def test_what_stands_for_no_energy_is_none():
    """More than nodes can draw is a counter that was reset."""
    for energy in ("", 0, 2**32 - 2, 2**32 - 1, 2**64 - 2, 2**64 - 1, 18_446_744_073_709_000_000):
        assert one(energy=str(energy)).joules is None
    assert one(energy=str(2 * 7200 * 3000)).joules == 43_200_000


def test_a_job_that_runs_has_no_end_and_one_that_waits_no_start():
    running = one(state="RUNNING", elapsed="60")
    assert (running.elapsed_s, running.waits(9e9)) == (60, {IN_THE_QUEUE: 600.0})
    waiting = one(state="PENDING", start="Unknown", elapsed="0", tres="", reason="Priority")
    assert waiting.waits(1500.0) == {IN_THE_QUEUE: 500.0}
    blocked = one(state="PENDING", eligible="Unknown", start="Unknown", reason="Dependency")
    assert blocked.waits(1500.0) == {"Dependency": 500.0}
    gone = one(state="CANCELLED by 1000", start="None", elapsed="0")
    assert (gone.state, gone.waits(9e9)) == ("CANCELLED", {})


@pytest.mark.parametrize(
    "reason, waits",
    [
        ("None", {NOT_ELIGIBLE: 200.0, IN_THE_QUEUE: 400.0}),
        ("AssocGrpGRESMinutes", {NOT_ELIGIBLE: 200.0, "AssocGrpGRESMinutes": 400.0}),
        ("Dependency", {"Dependency": 200.0, IN_THE_QUEUE: 400.0}),
    ],
)
def test_waiting_by_reason(reason, waits):
    assert one(eligible="1200", reason=reason).waits(9e9) == waits


def test_what_waits_of_an_array_and_half_a_line_are_left_out():
    assert parse_lives(row(job="7_[3-9%2]", state="PENDING") + "\n7|COMPL") == []


def test_jobs_are_asked_for_with_all_their_lives_and_older_ones_of_the_number_left_out(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Helsinki")
    time.tzset()
    asked = []

    def run(words):
        asked.extend(words)
        return row(submit="500") + "\n" + row(submit="1000")

    (life,) = job_lives(["7", "8_1"], 900.0, run)
    assert life.submitted == 1000
    assert "--duplicates" in asked and "--jobs=7,8_1" in asked
    assert "--starttime=1970-01-01T02:15:00" in asked, "local time, as sacct reads it"
    monkeypatch.undo()
    time.tzset()


def test_everybodys_jobs_of_a_partition():
    asked = []
    partition_lives("gpu", 900.0, lambda words: asked.extend(words) or "")
    assert {"--allusers", "--partition=gpu", "--duplicates"} <= set(asked)


def test_what_an_account_has_and_has_used():
    said = {
        "sacctmgr": "lab|ann|gres/gpu=60\nlab||cpu=600000,gres/gpu=75000\n",
        "scontrol": CONFIG,
        "sreport": "proj||cpu|7200\nproj||gres/gpu|3600000\nproj|ann|gres/gpu|3600000\n"
        "proj/sub||gres/gpu|36000\n",
    }
    limit = account_limits("proj", lambda words: said[words[0]])
    assert (limit.gpu_hours, limit.core_hours) == (1250.0, 10000.0)
    used = account_use("proj", 0.0, 9.0, lambda words: said[words[0]])
    assert used == {"cpu": 2.0, "gres/gpu": 1000.0}
    said["sacctmgr"] = "lab|ann|\nlab||\n"
    none = account_limits("proj", lambda words: said[words[0]])
    assert (none.gpu_hours, none.core_hours) == (None, None)


def test_what_another_cluster_grants_is_not_granted_here():
    """One slurmdbd keeps the accounts of several clusters; sreport counts the use of one."""
    rows = "big||gres/gpu=9000000\nlab||gres/gpu=75000\n"
    said = {"sacctmgr": rows, "scontrol": CONFIG}
    assert account_limits("proj", lambda words: said[words[0]]).gpu_hours == 1250.0
    said["sacctmgr"] = "big||gres/gpu=9000000\n"
    assert account_limits("proj", lambda words: said[words[0]]).gpu_hours is None
    said["scontrol"] = "no configuration\n"
    with pytest.raises(ClusterError, match="scontrol show config: it names no ClusterName"):
        account_limits("proj", lambda words: said[words[0]])


def test_the_default_account_and_the_meter():
    said = {"sacctmgr": "a_first|far\nlab|proj\n", "scontrol": CONFIG}
    asked = []
    assert default_account("ann", lambda w: asked.extend(w) or said[w[0]]) == "proj"
    assert {"associations", "user=ann", "onlydefaults"} <= set(asked)
    said["sacctmgr"] = "a_first|far\n"
    assert default_account("ann", lambda words: said[words[0]]) is None
    assert energy_meter(lambda _: CONFIG) == "acct_gather_energy/ipmi"
    assert energy_meter(lambda _: "") == "unknown"


def test_times_are_asked_for_as_seconds(tmp_path, monkeypatch):
    fake(tmp_path, "sacct", "echo $SLURM_TIME_FORMAT")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_accounting(["sacct"]) == "%s\n"
    with pytest.raises(ClusterError, match="sreport is not on PATH: this is no node of a Slurm"):
        run_accounting(["sreport"])


def test_the_accounts_of_a_cluster(tmp_path, monkeypatch):
    for name in ("sacct", "scontrol"):
        fake(tmp_path, name, f'echo "{name} $* on $SLURM_CLUSTERS"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accounts_of("c2")(["sacct"]) == "sacct --clusters=c2 on c2\n"
    assert accounts_of("c2")(["scontrol", "show", "config"]) == "scontrol show config on c2\n"
