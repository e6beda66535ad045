"""Sums over a run: hours by sacct and by its own records, waiting, lost work and energy."""

from pathlib import Path

import pytest

from verl_hpc.budget.use import OUTSIDE, RunRecords, use_of
from verl_hpc.runs.lives import RunLife
from verl_hpc.slurm.accounting import Life, parse_lives

RECORDED = parse_lives((Path(__file__).parents[1] / "slurm/sacct.txt").read_text())
NOW = 1_795_740_000.0


def life(**changes):
    given = {"job_id": "1", "state": "COMPLETED", "submitted": 0.0, "eligible": 0.0,
             "started": 60.0, "elapsed_s": 3600.0, "nodes": 1, "gpus": 4, "cpus": 32,
             "joules": None, "reason": "", "limit_s": None}  # fmt: skip
    return Life(**given | changes)


def own(**changes):
    return RunLife(**{"began": 0.0, "seen": 1800.0, "devices": 4, "unit": "GPU"} | changes)


def test_all_lives_of_recorded_jobs_add_up():
    """A requeued job of 7 and 20 s on 4 GPUs, and nobody else's."""
    use = use_of(RunRecords("run", ("2",)), RECORDED, NOW)
    assert use.hours == pytest.approx(4 * 27 / 3600)
    assert (use.unit, use.source, use.jobs, use.starts) == ("GPU", "sacct", 1, 2)
    assert use.joules == 2300 + 5966
    assert use.waits == {"BeginTime": 6.0, "Priority or Resources": 1.0}


def test_components_of_a_heterogeneous_job_add_up_and_wait_once():
    use = use_of(RunRecords("run", ("6",)), RECORDED, NOW)
    assert (use.starts, use.waits) == (1, {"Priority or Resources": 14.0})
    assert (use.hours, use.joules) == (pytest.approx(2 * 3 / 3600), 1207 + 903)


def test_a_run_of_an_array_is_none_of_the_others():
    use = use_of(RunRecords("run", ("3_1",)), RECORDED, NOW)
    assert use.hours == pytest.approx(4 * 4 / 3600)


def test_a_chain():
    use = use_of(RunRecords("run", ("4", "5")), RECORDED, NOW)
    assert (use.jobs, use.starts, use.waits["Dependency"]) == (2, 2, 9.0)


@pytest.mark.parametrize(
    ("jobs", "own_lives", "lives", "hours", "unit", "source"),
    [
        (("1",), (), [life(gpus=0)], 32.0, "core", "sacct"),
        # A cluster that does not account for its GPUs leaves them to the run.
        (("1",), (own(),), [life(gpus=0)], 2.0, "GPU", "own records"),
        (("1",), (own(outcome="restart"), own()), None, 4.0, "GPU", "own records"),
    ],
)
def test_hours_by_accounts_or_by_the_runs_own_records(jobs, own_lives, lives, hours, unit, source):
    use = use_of(RunRecords("run", jobs, own_lives), lives, NOW)
    assert (use.hours, use.unit, use.source) == (hours, unit, source)
    if lives is None:
        assert (use.starts, use.waits, use.joules, use.lost_s) == (2, {}, None, 0.0)


def test_a_run_that_left_nothing():
    use = use_of(RunRecords("run"), None, NOW)
    assert (use.hours, use.source, use.lost_s) == (None, "nothing", None)


def test_energy_goes_to_operators_by_their_time():
    """Operators that overlap share the time."""
    operators = {"rollout": 1800.0, "update_actor": 900.0}
    use = use_of(RunRecords("run", ("1",), (), operators), [life(joules=7.2e6)], NOW)
    assert use.kwh == 2.0
    assert use.kwh_by_operator == pytest.approx({"rollout": 1.0, "update_actor": 0.5, OUTSIDE: 0.5})
    assert use.as_json(500.0)["co2_kg"] == 1.0
    assert use.as_json(None)["co2_kg"] is None

    operators = {"rollout": 3600.0, "update_actor": 3600.0}
    use = use_of(RunRecords("run", ("1",), (), operators), [life(joules=7.2e6)], NOW)
    assert use.kwh_by_operator == pytest.approx({"rollout": 1.0, "update_actor": 1.0, OUTSIDE: 0.0})


def test_what_was_not_metered_is_told():
    lives = [life(joules=3.6e6), life(started=9000.0, submitted=8000.0)]
    use = use_of(RunRecords("run", ("1",)), lives, NOW)
    assert (use.metered_share, use.kwh) == (0.5, 1.0)


def test_what_ranks_measured_by_operator_is_told_in_place_of_shares_of_time():
    operators = {"rollout": 1800.0, "update_actor": 900.0}
    measured = {"nvml/rollout": 1.8e6, "rapl/rollout": 0.9e6, "nvml/update_actor": 0.9e6}
    run = RunRecords("run", ("1",), (), operators, measured)
    use = use_of(run, [life(joules=7.2e6)], NOW)
    assert (use.kwh, use.meters) == (2.0, ("sacct",))
    assert use.kwh_by_operator == {"rollout": 0.75, "update_actor": 0.25}
    assert use.as_json(None)["operators_by"] == ["nvml", "rapl"]


def test_without_sacct_the_sum_of_what_ranks_measured_is_the_runs_energy():
    run = RunRecords("run", ("1",), (own(),), {}, {"nvml/rollout": 3.6e6, "rapl/rollout": 1.8e6})
    use = use_of(run, None, NOW)
    assert (use.kwh, use.meters) == (1.5, ("nvml", "rapl"))
    assert use.as_json(500.0)["co2_kg"] == 0.75
    assert use_of(RunRecords("run", ("1",), (own(),)), None, NOW).kwh is None
