"""Slurm's accounts: sacct, sacctmgr and sreport as functions.

sacct has one row for each start of a job only with --duplicates; without it, what a job used before
it was requeued is missing. Its times are asked for as seconds since the epoch, since what it writes
otherwise is the local time of the reader, which an hour in autumn has twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from verl_hpc.errors import ClusterError
from verl_hpc.slurm.programs import run_program
from verl_hpc.slurm.tools import Runner, association_rows, cluster_setting, of_cluster

NOT_ELIGIBLE = "not eligible"
IN_THE_QUEUE = "Priority or Resources"
"""Accounting keeps the last reason why a job waited only if it was neither of these two."""

_FIELDS = (
    "JobID", "State", "Submit", "Eligible", "Start", "ElapsedRaw", "NNodes", "AllocTRES",
    "ConsumedEnergyRaw", "Reason", "TimelimitRaw",
)  # fmt: skip
_BEFORE_ELIGIBLE = frozenset(
    {"Dependency", "BeginTime", "JobArrayTaskLimit", "JobHeldUser", "JobHeldAdmin"}
)
"""Reasons for which a job is not eligible yet."""
_NO_VALUE = frozenset({0, *(2**bits - lack for bits in (32, 64) for lack in (1, 2))})
"""What stands in ConsumedEnergyRaw where nothing was metered: 0, NO_VAL and INFINITE."""
_MOST_WATTS_PER_NODE = 100_000.0
"""Counters that were reset while a step ran give differences far above what a node draws."""
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Life:
    """One start of a job, or of one component of a heterogeneous job, or one wait for a start.

    Times are seconds since the epoch, None where they have not come.
    """

    job_id: str
    """4711; 4711_3 for the run of an array; 4711 for every component of a heterogeneous job."""
    state: str
    submitted: float
    """For a job that was requeued, when that was."""
    eligible: float | None
    started: float | None
    elapsed_s: float
    """Up to now for a job that runs. Slurm leaves out the time for which it was suspended."""
    nodes: int
    gpus: int
    cpus: int
    joules: float | None
    """Consumed by its nodes, others' jobs on them included; None where nothing was metered."""
    reason: str
    limit_s: float | None

    def waits(self, now: float) -> dict[str, float]:
        """Seconds in the queue by Slurm's reason, up to `now` for a job that still waits."""
        end = now if self.started is None else self.started
        if self.started is None and not self.state.startswith(("PENDING", "REQUEUE")):
            return {}
        eligible = min(end if self.eligible is None else self.eligible, end)
        early = self.reason in _BEFORE_ELIGIBLE
        first = self.reason if early else NOT_ELIGIBLE
        then = IN_THE_QUEUE if early or not self.reason else self.reason
        waits = {first: eligible - self.submitted, then: end - eligible}
        return {reason: seconds for reason, seconds in waits.items() if seconds > 0}


@dataclass(frozen=True)
class Limit:
    """What the association of an account grants."""

    account: str
    gpu_hours: float | None
    core_hours: float | None


def run_accounting(words: Sequence[str], cluster: str | None = None) -> str:
    """Run a program that reads Slurm's accounts, with times as seconds since the epoch.

    Args:
        cluster: as for `run_tool`.

    Raises:
        ClusterError: it is not there, fails, or does not answer within two minutes.
    """
    asked = {} if cluster is None else {"SLURM_CLUSTERS": cluster}
    return run_program(
        of_cluster(words, cluster),
        _TIMEOUT_S,
        if_missing=": this is no node of a Slurm cluster, or its module is not loaded",
        if_slow="; is the database overloaded? Try again later",
        variables={"SLURM_TIME_FORMAT": "%s"} | asked,
    )


def accounts_of(cluster: str | None) -> Runner:
    """Asks the accounts of one cluster; of the login nodes' own if None."""
    return partial(run_accounting, cluster=cluster)


def shortly(error: ClusterError) -> str:
    """The program and its first complaint, without the options it was given."""
    line = str(error).splitlines()[0]
    words, colon, why = line.partition(": ")
    return f"{words.split()[0]}: {why}" if colon and " --" in words else line


def job_lives(job_ids: Iterable[str], since: float, run: Runner = run_accounting) -> list[Life]:
    """Every start of these jobs.

    Args:
        job_ids: of jobs.
        since: a time before the first of them was submitted. Numbers of jobs are used again after
            years, and an older job of the same number is none of them.
        run: starts sacct.

    Raises:
        ClusterError: there is no accounting, or it does not answer.
    """
    words = [*_words(since), f"--jobs={','.join(job_ids)}"]
    return [life for life in parse_lives(run(words)) if life.submitted >= since]


def partition_lives(
    partition: str | None, since: float, run: Runner = run_accounting
) -> list[Life]:
    """Starts of everybody's jobs in a partition, or in all; of the user's own where the site shows
    nobody's else. Raises as `job_lives`."""
    words = [*_words(since), "--allusers", "--allocations"]
    return parse_lives(run([*words, *([f"--partition={partition}"] if partition else [])]))


def parse_lives(text: str) -> list[Life]:
    """What sacct has printed of `_FIELDS` with --parsable2 --noheader --duplicates."""
    lives: list[Life] = []
    steps: list[dict[str, float]] = []
    for line in text.splitlines():
        row = dict(zip(_FIELDS, line.split("|"), strict=False))
        job_id, _, step = row["JobID"].partition(".")
        if len(row) < len(_FIELDS) or "[" in job_id:  # the rest of an array that waits
            continue
        if not step:
            lives.append(_life(job_id.partition("+")[0], row))
            steps.append({})
        elif lives and (joules := _joules(row)) is not None:
            kind = step if step in ("batch", "extern") else "steps"
            steps[-1][kind] = steps[-1].get(kind, 0.0) + joules
    # A job that was requeued has no sum. The batch step and the extern step are on the same nodes
    # at the same time as the others, whose energy they have counted as well.
    return [
        replace(life, joules=max(meter.values(), default=None)) if life.joules is None else life
        for life, meter in zip(lives, steps, strict=True)
    ]


def account_limits(account: str, run: Runner = run_accounting) -> Limit:
    """What the account's association with the cluster that is asked grants; nothing is known where
    it has no limit in hours.

    Raises:
        ClusterError: as `association_rows`.
    """
    rows = association_rows(f"account={account}", "User,GrpTRESMins", run)
    granted = [minutes for user, minutes in rows if not user]
    minutes = _tres(granted[0] if granted else "")
    gpus, cores = _gpus(minutes), minutes.get("cpu")
    return Limit(account, gpus / 60 if gpus else None, None if cores is None else cores / 60)


def account_use(
    account: str, since: float, until: float, run: Runner = run_accounting
) -> dict[str, float]:
    """Hours that an account and those below it have used, by TRES: {"cpu": 96, "gres/gpu": 12}.

    slurmdbd adds jobs up once an hour, so that the last one is missing.

    Raises:
        ClusterError: there is no accounting, or it does not answer.
    """
    words = ["sreport", "--noheader", "--parsable2", "-t", "Seconds", "--tres=cpu,gres/gpu"]
    words += ["cluster", "AccountUtilizationByUser", f"Accounts={account}"]
    words += [f"Start={_local(since)}", f"End={_local(until)}"]
    rows = run([*words, "format=Account,Login,TresName,Used"]).splitlines()
    hours: dict[str, float] = {}
    for name, login, tres, used in (row.split("|") for row in rows if row.count("|") == 3):
        if name == account and not login:
            hours[tres] = hours.get(tres, 0.0) + float(used) / 3600
    return hours


def default_account(user: str, run: Runner = run_accounting) -> str | None:
    """Whom a user's jobs on the cluster that is asked are charged to if they name no account.

    Raises:
        ClusterError: as `association_rows`.
    """
    rows = association_rows(f"user={user}", "Account", run, only_defaults=True)
    return rows[0][0] if rows else None


def energy_meter(run: Runner = run_accounting) -> str:
    """The plug-in that Slurm meters energy with, such as acct_gather_energy/ipmi. Raises as
    `job_lives`."""
    return cluster_setting("AcctGatherEnergyType", run) or "unknown"


def _words(since: float) -> list[str]:
    words = ["sacct", "--noheader", "--parsable2", "--duplicates", f"--format={','.join(_FIELDS)}"]
    return [*words, f"--starttime={_local(since)}"]


def _local(time: float) -> str:
    """Write a time as Slurm's programs read it: in this machine's zone, without naming it."""
    return (
        datetime.fromtimestamp(time, UTC)
        .astimezone()
        .replace(tzinfo=None)
        .isoformat(timespec="seconds")
    )


def _life(job_id: str, row: Mapping[str, str]) -> Life:
    tres = _tres(row["AllocTRES"])
    # "CANCELLED by 1000" is CANCELLED.
    return Life(
        job_id=job_id,
        state=row["State"].partition(" ")[0],
        submitted=_number(row["Submit"]) or 0.0,
        eligible=_number(row["Eligible"]),
        started=_number(row["Start"]),
        elapsed_s=_number(row["ElapsedRaw"]) or 0.0,
        nodes=int(_number(row["NNodes"]) or 0),
        gpus=int(_gpus(tres)),
        cpus=int(tres.get("cpu", 0)),
        joules=_joules(row),
        reason="" if row["Reason"] in ("None", "Priority", "Resources") else row["Reason"],
        limit_s=60 * minutes if (minutes := _number(row["TimelimitRaw"])) else None,
    )


def _number(text: str) -> float | None:
    """None for Unknown, None, UNLIMITED and the empty word."""
    return float(text) if text.isdecimal() else None


def _joules(row: Mapping[str, str]) -> float | None:
    joules, seconds = _number(row["ConsumedEnergyRaw"]), _number(row["ElapsedRaw"]) or 0.0
    nodes = max(_number(row["NNodes"]) or 1.0, 1.0)
    if joules is None or int(joules) in _NO_VALUE:
        return None
    return joules if joules <= _MOST_WATTS_PER_NODE * nodes * max(seconds, 1.0) else None


def _tres(text: str) -> dict[str, float]:
    """`cpu=8,mem=10G,gres/gpu=4` without what is no plain number."""
    pairs = (item.partition("=")[::2] for item in text.split(","))
    return {name: float(value) for name, value in pairs if value.isdecimal()}


def _gpus(tres: Mapping[str, float]) -> float:
    """A typed GPU is counted in gres/gpu as well, where the site keeps both."""
    typed = sum(number for name, number in tres.items() if name.startswith("gres/gpu:"))
    return tres.get("gres/gpu", typed)
