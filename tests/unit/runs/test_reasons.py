"""Explanations of Slurm's reasons."""

import pytest

from verl_hpc.runs.reasons import explained, never_passes


@pytest.mark.parametrize(
    "reason, words",
    [
        ("(launch failed requeued held)", "`scontrol release 45` lets it start again"),
        ("ReqNodeNotAvail, UnavailableNodes:n[3-4]", "down or reserved"),
        ("AssocGrpGRES", "a limit of your account or QOS is used up"),
        ("AssocGrpGRESRunMinutes", "a limit of your account or QOS is used up"),
        ("QOSMaxGRESPerUser", "a limit of your account or QOS is used up"),
        ("QOSMinCpuNotSatisfied", "its QOS is for larger jobs: `scancel 45`"),
        ("DependencyNeverSatisfied", "`scancel 45`"),
        ("JobLaunchFailure", "doctor --nodes 1"),
    ],
)
def test_what_to_do(reason, words):
    told = explained(reason, "45")
    assert told.startswith(f"{reason}: ")
    assert words in told


@pytest.mark.parametrize(
    "reason",
    [
        "AssocGrpGRESMinutes", "AssocGrpCPUMinutesLimit", "AssocGrpBillingMinutes",
        "QOSGrpGRESMinutes", "(QOSGrpWallLimit)",
    ],
)  # fmt: skip
def test_hours_that_are_used_up_are_not_free_again_with_the_next_job(reason):
    """They may come back without a command: as use is forgotten (PriorityDecayHalfLife,
    PriorityUsageResetPeriod), or jobs that run leave some of their time limits."""
    told = explained(reason, "45")
    assert "the hours of your account or QOS are used up" in told
    assert "`python -m verl_hpc budget`" in told
    assert "when that is free" not in told
    assert never_passes(reason) is None


def test_what_waits_for_a_command_and_what_passes_by_itself():
    for reason in (
        "JobHeldAdmin", "JobHeldUser", "launch_failed_requeued_held", "(JobHoldMaxRequeue)",
        "BadConstraints", "QOSNotAllowed", "QOSMaxWallDurationPerJobLimit",
        "AssocMaxNodePerJobLimit", "QOSMaxCpuMinutesPerJobLimit", "QOSMaxGRESPerNode",
        "DependencyNeverSatisfied",
    ):  # fmt: skip
        assert never_passes(reason).startswith(f"{reason}: ")
    for reason in ("ReqNodeNotAvail", "AssocGrpGRES"):
        assert never_passes(reason) is None
    for reason in ("Priority", "Resources", "BeginTime", "CANCELLED", ""):
        assert (never_passes(reason), explained(reason, "45")) == (None, reason)
