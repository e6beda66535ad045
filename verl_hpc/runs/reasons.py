"""What Slurm's reasons for a job mean, and what to do (squeue(1), "JOB REASON CODES")."""

from __future__ import annotations

_TOLD = {
    "JobLaunchFailure": "Slurm could not start the batch script on its node; can nodes write the "
    "run directory, and is there room in your quota? `python -m verl_hpc doctor --nodes 1` looks",
    "launch failed requeued held": "it could not be started and is held: `scontrol release {job}` "
    "lets it start again, once its cause is gone",
    "JobHeldUser": "you hold it: `scontrol release {job}` lets it start",
    "JobHeldAdmin": "an administrator holds it, and has to release it",
    "JobHoldMaxRequeue": "it was requeued too often and is held: `scontrol release {job}`",
    "SpecialExit": "it is held in a special state: `scontrol release {job}`",
    "DependencyNeverSatisfied": "what it waits for cannot happen any more: `scancel {job}`",
    "BadConstraints": "no node has what it asks for: `scancel {job}`, and correct the site profile",
    "PartitionTimeLimit": "it asks for more time than the partition gives: `scancel {job}`, and "
    "submit with less --time",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives: `scancel {job}`, and "
    "submit with fewer --nodes",
    "InvalidAccount": "there is no such account: `scancel {job}`, and submit with --account",
    "InvalidQOS": "there is no such QOS: `scancel {job}`, and submit with --qos",
    "QOSMinCpuNotSatisfied": "its QOS is for larger jobs: `scancel {job}`, and submit with another "
    "--qos",
    "ReqNodeNotAvail": "a node that it needs is down or reserved; it starts when that is back",
    "OUT_OF_MEMORY": "the job took more memory than its nodes gave it: raise memory in the site "
    "profile, or take fewer reward processes",
    "NODE_FAIL": "a node of it failed",
    "TIMEOUT": "its time was up before it had saved: raise signal_lead_s in the site profile",
    "PREEMPTED": "another job took its nodes",
}
_LIMITS = ("Assoc", "QOSGrp", "QOSMax", "MaxCpuPer", "MaxGRESPer", "MaxJobsPer", "MaxNodePer")


def explained(reason: str, job_id: str) -> str:
    """A reason, or a state that a job has ended in, with what it means; itself if not known."""
    key = _key(reason)
    if key in _TOLD:
        return f"{reason}: {_TOLD[key].format(job=job_id)}"
    if key.startswith(_LIMITS):
        return f"{reason}: a limit of your account or QOS is used up; it starts when that is free"
    return reason


def needs_its_owner(reason: str) -> bool:
    """Whether a job waits for a command of its owner, which `explained` names."""
    return "{job}" in _TOLD.get(_key(reason), "")


def _key(reason: str) -> str:
    # squeue writes the nodes of some reasons behind them.
    return reason.strip("()").split(",")[0]
