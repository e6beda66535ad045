"""Explain Slurm's reasons for a job's state, and what to do (squeue(1), "JOB REASON CODES")."""

from __future__ import annotations

from typing import NamedTuple


class _Told(NamedTuple):
    meaning: str
    todo: str = ""
    passes: bool = True
    """Whether a job with this reason may start without a command of anybody."""


_RELEASE = "`scontrol release {job}` lets it start"
_CANCEL = "`scancel {job}`"
_TOLD = {
    "JobLaunchFailure": _Told(
        "Slurm could not start the batch script on its node",
        "can nodes write the run directory, and is there room in your quota? "
        "`python -m verl_hpc doctor --nodes 1` looks",
    ),
    "launch failed requeued held": _Told(
        "it could not be started and is held", f"{_RELEASE} again, once its cause is gone", False
    ),
    "JobHeldUser": _Told("you hold it", _RELEASE, False),
    "JobHeldAdmin": _Told("an administrator holds it", "ask yours to release it", False),
    "JobHoldMaxRequeue": _Told("it was requeued too often and is held", _RELEASE, False),
    "SpecialExit": _Told("it is held in a special state", _RELEASE, False),
    "DependencyNeverSatisfied": _Told("what it waits for cannot happen any more", _CANCEL, False),
    "BadConstraints": _Told(
        "no node has what it asks for", f"{_CANCEL}, and correct the site profile", False
    ),
    "PartitionTimeLimit": _Told(
        "it asks for more time than the partition gives",
        f"{_CANCEL}, and submit with less --time",
        False,
    ),
    "PartitionNodeLimit": _Told(
        "it asks for more nodes than the partition gives",
        f"{_CANCEL}, and submit with fewer --nodes",
        False,
    ),
    "InvalidAccount": _Told(
        "there is no such account", f"{_CANCEL}, and submit with --account", False
    ),
    "AccountNotAllowed": _Told(
        "the partition does not serve its account", f"{_CANCEL}, and submit with another", False
    ),
    "InvalidQOS": _Told("there is no such QOS", f"{_CANCEL}, and submit with --qos", False),
    "QOSNotAllowed": _Told(
        "the partition does not serve its QOS", f"{_CANCEL}, and submit with another --qos", False
    ),
    "QOSMinCpuNotSatisfied": _Told(
        "its QOS is for larger jobs", f"{_CANCEL}, and submit with another --qos", False
    ),
    "ReqNodeNotAvail": _Told(
        "a node that it needs is down or reserved; it starts when that is back"
    ),
    "OUT_OF_MEMORY": _Told(
        "the job took more memory than its nodes gave it",
        "raise memory in the site profile, or take fewer reward processes",
    ),
    "NODE_FAIL": _Told("a node of it failed"),
    "TIMEOUT": _Told(
        "its time was up before it had saved", "raise signal_lead_s in the site profile"
    ),
    "PREEMPTED": _Told("another job took its nodes"),
}
_LIMITS = ("Assoc", "QOSGrp", "QOSMax", "MaxCpuPer", "MaxGRESPer", "MaxJobsPer", "MaxNodePer")
_USED_UP = _Told("a limit of your account or QOS is used up; it starts when that is free")
_NO_HOURS = _Told(
    "the hours of your account or QOS are used up, or fewer are left than the job may use in its "
    "time limit; it starts when hours are granted or come back",
    "`python -m verl_hpc budget` shows what is left; where some is, a job with less --time or "
    "fewer --nodes may start",
)
"""A job with this reason may start by itself: use of GrpTRESMins and GrpWall is forgotten in time
by PriorityDecayHalfLife or PriorityUsageResetPeriod (sacctmgr(1), NoDecay), and running jobs give
back what they do not use of their time limits."""
_TOO_LARGE = _Told(
    "it asks for more than your account or QOS gives one job",
    f"{_CANCEL}, and submit with less --time, fewer --nodes, or another --qos",
    False,
)


def explained(reason: str, job_id: str) -> str:
    """Return a reason, or a job's final state, with its meaning; unchanged if not known."""
    told = _told(reason)
    if told is None:
        return reason
    todo = f": {told.todo.format(job=job_id)}" if told.todo else ""
    return f"{reason}: {told.meaning}{todo}"


def never_passes(reason: str) -> str | None:
    """Return a reason with its meaning, if a job with it waits for a command of somebody.

    Returns: None if the job may start by itself, or the reason is not known.
    """
    told = _told(reason)
    return None if told is None or told.passes else f"{reason}: {told.meaning}"


def _told(reason: str) -> _Told | None:
    # squeue appends nodes to some reasons, scontrol writes underscores between words.
    key = reason.strip("()").split(",")[0]
    told = _TOLD.get(key) or _TOLD.get(key.replace("_", " "))
    return _limit(key) if told is None and key.startswith(_LIMITS) else told


def _limit(key: str) -> _Told:
    """Explain a reason that names a limit: AssocMaxGRESPerJob, QOSGrpCPURunMinutesLimit, ..."""
    if any(part in key for part in ("PerJob", "PerNode", "WallDuration")):
        return _TOO_LARGE
    # Running jobs hold RunMinutes until they end; Minutes and Wall add up over all jobs.
    of_all_jobs = "GrpWall" in key or ("Minutes" in key and "RunMinutes" not in key)
    return _NO_HOURS if of_all_jobs else _USED_UP
