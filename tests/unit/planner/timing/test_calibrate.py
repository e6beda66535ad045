"""Factors fitted to runs: of a machine that is made up, and of five runs on four CPU ranks.

`cpu_runs.json` has the metrics of PPO on a decoder of 4 layers and 256 wide (64 sequences a step,
2 optimizer steps), as four ranks on two shared cores wrote them: steps 2 to 5 of each run.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.config.trees import GAE, parse
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.planner.hardware import KINDS, Hardware
from verl_hpc.planner.layouts import run_layouts
from verl_hpc.planner.timing.calibrate import (
    CPU_SECONDS,
    calibrate,
    errors_of,
    measured,
    workload_measured,
)
from verl_hpc.planner.timing.cost import CPU_RANKS, TERMS, Efficiency
from verl_hpc.planner.timing.least_squares import solve
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step

FOUND = json.loads((Path(__file__).parent / "cpu_runs.json").read_text())
MODEL = architecture_from(FOUND["model"])
CPUS = Machine(Hardware(KINDS["cpu"], 4), CPU_RANKS)
LAYOUTS = {"a": "TP1 DP4", "b": "TP2 DP2", "c": "TP4", "d": "PP2 DP2", "e": "TP2 PP2"}


def config_of(parallel, rollout_tp):
    return parse(
        **GAE,
        algorithm__kl={"placement": "reward"},
        model__dtype="float32",
        parallel=parallel,
        batch={"size": 32, "mini_batches": 2, "max_tokens_per_micro_batch": 512},
        rollout={
            "tensor_parallel": rollout_tp,
            "num_samples": 2,
            "max_prompt_tokens": 40,
            "max_response_tokens": 48,
            "kv_cache_gib": 0.1,
        },
    )


def observed(name, machine=CPUS):
    run = FOUND["runs"][name]
    config = config_of(run["parallel"], run["rollout_tensor_parallel"])
    layouts = run_layouts(config, MODEL, 4)
    return measured(name, config, MODEL, layouts, run["rows"], machine, by=CPU_SECONDS)


@pytest.mark.parametrize("runs", ["ab", "ac"])
def test_two_layouts_on_cpus_tell_of_others(runs):
    fit = calibrate([observed(name) for name in runs], CPU_RANKS)
    others = [observed(name) for name in LAYOUTS if name not in runs]
    errors = errors_of(others, fit.efficiency)
    names = {error.operator for error in errors}
    assert {"rollout", "old_log_probs", "values", "update_actor", "update_critic"} <= names
    # The host's few milliseconds of other operators are noise.
    for error in errors:
        if error.measured > 0.01:
            assert abs(error.relative) < 0.25, error


def test_nothing_fitted_is_far_off():
    """So that the fit above is worth something."""
    errors = errors_of([observed("c")], Efficiency())
    assert max(abs(error.relative) for error in errors) > 0.5


def made_up(name, parallel, rollout_tp, truth):
    """A run of a machine whose factors are known."""
    config = config_of(parallel, rollout_tp)
    layouts = run_layouts(config, MODEL, 4)
    machine = Machine(CPUS.hardware, truth, counts_waiting=False)
    rows = FOUND["runs"]["a"]["rows"]
    work = workload_measured(config, rows)
    step = predict_step(config, MODEL, layouts, machine, work=work)
    row = {f"{CPU_SECONDS}{operator}": seconds for operator, seconds in step.operators.items()}
    lengths = {key: value for key, value in rows[0].items() if key.endswith("length/mean")}
    means = [{**lengths, **row}]
    return measured(name, config, MODEL, layouts, means, CPUS, by=CPU_SECONDS), step


def test_the_factors_of_a_made_up_machine_predict_it():
    truth = replace(CPU_RANKS, training=0.3, inference=0.9, layers=6e-3, decode_steps=5e-3)
    sizes = [({}, 1), ({"tensor_parallel": 2}, 2), ({"tensor_parallel": 2}, 1)]
    runs = [made_up(f"run {i}", *size, truth)[0] for i, size in enumerate(sizes)]
    fit = calibrate(runs, CPU_RANKS)
    assert max(abs(error.relative) for error in fit.errors) < 0.03
    other, _ = made_up("other", {"pipeline_parallel": 2}, 1, truth)
    assert max(abs(e.relative) for e in errors_of([other], fit.efficiency)) < 0.1


def test_factors_that_no_operator_has_stay():
    fit = calibrate([observed("a")])
    for term in set(TERMS) - set(fit.fitted):
        assert getattr(fit.efficiency, term) == getattr(Efficiency(), term)
    assert "pcie" not in fit.fitted and "training" in fit.fitted


def test_nothing_exceeds_a_data_sheet():
    fit = calibrate([replace(observed(name), on_gpu=True) for name in "ab"])
    assert all(getattr(fit.efficiency, term) <= 1.0 for term in ("memory", "prefill", "training"))


def test_rows_without_operators():
    config = config_of({}, 1)
    with pytest.raises(ConfigError, match="run: its metrics have no cpu_s/NAME"):
        measured("run", config, MODEL, run_layouts(config, MODEL, 4), [], CPUS, by=CPU_SECONDS)


def test_least_squares():
    rows, wanted = [[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]], [1.0, 3.0, 4.0]
    assert solve(rows, wanted, [0.0, 0.0], [1e-6] * 2, [0.0] * 2) == pytest.approx([1.0, 2.0])
    # The second is bounded below, and the first makes up for it as well as it can.
    assert solve(rows, wanted, [0.0, 0.0], [1e-6] * 2, [0.0, 3.0]) == pytest.approx([0.5, 3.0])
    assert solve([], [], [4.0], [1.0], [0.0]) == [4.0]
