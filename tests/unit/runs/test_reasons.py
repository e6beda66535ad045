"""What Slurm's reasons are told as."""

import pytest

from verl_hpc.runs.reasons import explained, never_passes


@pytest.mark.parametrize(
    "reason, words",
    [
        ("(launch failed requeued held)", "`scontrol release 45` lets it start again"),
        ("ReqNodeNotAvail, UnavailableNodes:n[3-4]", "down or reserved"),
        ("AssocGrpGRESMinutes", "a limit of your account or QOS is used up"),
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


@pytest.mark.parametrize("reason", ["Priority", "Resources", "BeginTime", "CANCELLED", ""])
def test_what_speaks_for_itself_is_left_as_it_is(reason):
    assert explained(reason, "45") == reason


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldAdmin",
        "JobHeldUser",
        "launch_failed_requeued_held",
        "(JobHoldMaxRequeue)",
        "BadConstraints",
        "QOSNotAllowed",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxNodePerJobLimit",
        "DependencyNeverSatisfied",
    ],
)
def test_what_waits_for_a_command(reason):
    assert never_passes(reason).startswith(f"{reason}: ")


@pytest.mark.parametrize(
    "reason", ["Priority", "Resources", "ReqNodeNotAvail", "AssocGrpGRESMinutes", "", "BeginTime"]
)
def test_what_passes_by_itself(reason):
    assert never_passes(reason) is None
