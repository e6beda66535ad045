"""Factors fitted to runs: of a machine that is made up, and of runs on four CPU ranks.

The runs are those of `benchmarks.calibration`: three models and recipes, each on five layouts.
"""

import json
from dataclasses import replace
from itertools import combinations

import pytest

from benchmarks import calibration
from benchmarks.calibration import LAYOUTS, planned
from benchmarks.launch import REPOSITORY
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.planner.timing.calibrate import (
    CPU_SECONDS,
    LEAST_CPU_SECONDS,
    calibrate,
    errors_of,
    measured,
    workload_measured,
)
from verl_hpc.planner.timing.cost import CPU_RANKS, TERMS, Efficiency
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step

PAGE = REPOSITORY / "benchmarks/results/2026-11-calibration-cpu.json"
FOUND = json.loads(PAGE.read_text())
MODELS = {recipe: calibration.architecture(recipe) for recipe in calibration.SIZES}
CPUS = Machine(Hardware(KINDS["cpu"], 4), CPU_RANKS)
TRAINS = ("old_log_probs", "ref_log_probs", "values", "update_actor", "update_critic")
"""Operators of training engines."""


def observed(recipe, layout):
    return calibration.observed(FOUND, recipe, layout)


@pytest.mark.parametrize("recipe", MODELS)
@pytest.mark.parametrize("pair", combinations(LAYOUTS, 2), ids="+".join)
def test_two_layouts_on_cpus_tell_of_training_on_any_third(recipe, pair):
    """Best where one of the two has tensor parallelism and the other has none."""
    alike = len({LAYOUTS[layout][0] > 1 for layout in pair}) == 1
    for error in calibration.predicted(FOUND, recipe, pair):
        if error.operator in TRAINS:
            assert abs(error.relative) < (0.36 if alike else 0.25), error


def test_nothing_fitted_is_far_off():
    """So that the fit above is worth something."""
    errors = errors_of([observed("ppo", "tp4")], Efficiency())
    assert max(abs(error.relative) for error in errors) > 0.5


def made_up(name, layout, truth):
    """A run of a machine whose factors are known."""
    (config, layouts), model = planned("ppo", layout), MODELS["ppo"]
    machine = Machine(CPUS.hardware, truth, counts_waiting=False, of_first_rank=True)
    row = FOUND["runs"]["ppo-tp1"]
    lengths = {key: value for key, value in row.items() if key.endswith("length/mean")}
    work = workload_measured(config, [lengths])
    step = predict_step(config, model, layouts, machine, work=work)
    row = {f"{CPU_SECONDS}{name}": truth.seconds(cost) for name, cost in step.costs.items()}
    return measured(name, config, model, layouts, [lengths | row], CPUS, by=CPU_SECONDS)


def test_the_factors_of_a_made_up_machine_predict_it():
    truth = replace(CPU_RANKS, training=0.3, inference=0.9, layers=6e-3, decode_steps=5e-3)
    fit = calibrate([made_up(name, name, truth) for name in ("tp1", "tp2", "tp4")], CPU_RANKS)
    assert max(abs(error.relative) for error in fit.errors) < 0.05
    other = made_up("other", "tp2pp2", truth)
    assert max(abs(e.relative) for e in errors_of([other], fit.efficiency)) < 0.1


def test_a_machine_of_another_kind_is_found_from_far_off():
    """Orders of magnitude weigh as their logarithm: the factors start as those of GPUs."""
    fit = calibrate([made_up(name, name, CPU_RANKS) for name in LAYOUTS], Efficiency())
    assert max(abs(error.relative) for error in fit.errors) < 0.4


def test_cpu_seconds_are_of_the_first_stage():
    """It has no output layer, takes no losses, and hides no collectives."""
    (config, layouts), model = planned("ppo", "pp2"), MODELS["ppo"]
    first = Machine(CPUS.hardware, CPU_RANKS, counts_waiting=False, of_first_rank=True)
    costs = predict_step(config, model, layouts, first).costs
    assert "sequences" not in costs["update_actor"]
    # Values come from the same layers.
    assert costs["old_log_probs"] == pytest.approx(costs["values"])
    slowest = predict_step(config, model, layouts, replace(first, of_first_rank=False)).costs
    assert slowest["old_log_probs"]["inference"] > costs["old_log_probs"]["inference"]
    assert slowest["update_actor"]["sequences"] > 0


def test_a_disturbed_step_changes_nothing():
    (config, layouts), row = planned("sft", "tp2"), FOUND["runs"]["sft-tp2"]
    seconds = f"{CPU_SECONDS}update_actor"
    rows = [row, row | {seconds: 9.0}, row]
    found = measured("run", config, MODELS["sft"], layouts, rows, CPUS, by=CPU_SECONDS)
    assert found.seconds["update_actor"] == row[seconds]


def test_operators_below_ten_milliseconds_are_left_out():
    found = observed("ppo", "tp1")
    row = FOUND["runs"]["ppo-tp1"]
    assert 0 < row[f"{CPU_SECONDS}advantages"] < LEAST_CPU_SECONDS
    assert "advantages" not in found.seconds and "reshard" in found.seconds


def test_factors_that_no_operator_has_stay():
    fit = calibrate([observed("ppo", "tp1")])
    for term in set(TERMS) - set(fit.fitted):
        assert getattr(fit.efficiency, term) == getattr(CPU_RANKS, term)
    assert "pcie" not in fit.fitted and "training" in fit.fitted


def test_what_runs_do_not_tell_is_named():
    whole = calibrate([observed("ppo", "tp1"), observed("ppo", "pp2")], CPU_RANKS)
    split = calibrate([observed("ppo", layout) for layout in ("tp1", "tp2", "tp4")], CPU_RANKS)
    alone, both = ({one.term: one.instead for one in f.undetermined} for f in (whole, split))
    # Both counts are those of decoding steps, of one number of layers.
    assert "decode_layers" in alone["decode_steps"]
    # No tensor parallelism, no sums of it.
    assert alone["hops"] == () and "hops" not in both
    assert "training" not in alone


def test_nothing_exceeds_a_data_sheet():
    runs = [replace(observed("ppo", layout), on_gpu=True) for layout in ("tp1", "tp2")]
    fit = calibrate(runs)
    assert all(getattr(fit.efficiency, term) <= 1.0 for term in ("memory", "prefill", "training"))


def test_rows_without_operators():
    config, layouts = planned("ppo", "tp1")
    with pytest.raises(ConfigError, match="run: its metrics have no cpu_s/NAME"):
        measured("run", config, MODELS["ppo"], layouts, [], CPUS, by=CPU_SECONDS)
