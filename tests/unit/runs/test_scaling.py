"""Efficiencies, and which runs may stand in one table."""

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.runs.scaling.efficiency import (
    Measured,
    check_comparable,
    check_tables,
    scales_to,
    strong_tables,
    weak_tables,
)
from verl_hpc.runs.scaling.page import Window, render_page


def measured(ranks, batch, seconds, name=None, on_gpus=True, **settings):
    settings = {"model.path": "m", "batch.size": batch, "steps": 9, **settings}
    facts = {"tokens_per_s": 1000.0 * ranks, "rank_hours": 2.5, "settings": settings}
    facts["operators"] = {"rollout": 0.6, "update_actor": 0.4}
    times = tuple(seconds) if isinstance(seconds, list) else (seconds, seconds)
    sizes = {"nodes": max(ranks // 4, 1), "ranks": ranks, "batch": batch, "on_gpus": on_gpus}
    return Measured(name=name or f"r{ranks}b{batch}", seconds=times, **sizes, **facts)


def columns(points, *names):
    """A list of the values of all points, for each name."""
    return [[getattr(point, name) for point in points] for name in names]


def test_strong_scaling():
    runs = [measured(16, 32, 4.0), measured(4, 32, 10.0), measured(8, 32, 6.0)]
    ((batch, points),) = strong_tables(runs).items()
    assert (batch, [point.run.ranks for point in points]) == (32, [4, 8, 16])
    ideal, speedup, efficiency = columns(points, "ideal_s", "speedup", "efficiency")
    assert ideal == [10.0, 5.0, 2.5]
    assert speedup == pytest.approx([1.0, 10 / 6, 2.5])
    # p_b T_b / (p_N T_N)
    assert efficiency == pytest.approx([1.0, 40 / 48, 40 / 64])
    rest = columns(points, "ideal_speedup", "is_enough")
    assert rest == [[1.0, 2.0, 4.0], [True, True, False]]
    assert scales_to(points) == 8
    assert weak_tables(runs) == {}


def test_weak_scaling():
    runs = [measured(4, 32, 10.0), measured(8, 64, 12.5), measured(16, 128, 20.0)]
    ((share, points),) = weak_tables(runs).items()
    assert (share, columns(points, "ideal_s")) == (8, [[10.0] * 3])
    assert columns(points, "efficiency")[0] == pytest.approx([1.0, 0.8, 0.5])
    assert strong_tables(runs) == {}


def test_efficiency_is_of_the_mean_step():
    points = strong_tables([measured(1, 8, [1.0, 3.0]), measured(2, 8, [1.0, 1.5])])[8]
    assert points[1].efficiency == pytest.approx(2.0 / (2 * 1.25))


def test_one_run_may_be_in_both_tables():
    runs = [measured(4, 32, 10.0), measured(8, 32, 6.0), measured(8, 64, 11.0)]
    assert (list(strong_tables(runs)), list(weak_tables(runs))) == ([32], [8])
    check_tables(runs)


def test_of_several_layouts_of_the_smallest_size_the_fastest_is_the_base():
    runs = [measured(4, 32, 12.0, "slow"), measured(4, 32, 10.0, "fast"), measured(8, 32, 5.0)]
    points = strong_tables(runs)[32]
    assert [point.run.name for point in points][:2] == ["fast", "slow"]
    assert [point.efficiency for point in points] == pytest.approx([1.0, 10 / 12, 1.0])


def test_a_size_that_is_good_enough_beyond_one_that_is_not_does_not_count():
    points = strong_tables([measured(1, 8, 8.0), measured(2, 8, 6.0), measured(4, 8, 2.0)])[8]
    assert [point.is_enough for point in points] == [True, False, True]
    assert scales_to(points) == 1


OF_RESULTS = """model.path rollout.max_response_tokens batch.mini_batches algorithm.kl.placement
seed data.train.size names"""


@pytest.mark.parametrize("name", OF_RESULTS.split())
def test_runs_that_compute_other_things_are_refused(name):
    runs = [measured(4, 32, 9.0, **{name: 1}), measured(8, 32, 5.0, **{name: 2})]
    with pytest.raises(ConfigError, match=f"do not compute the same: {name} = 1 and"):
        check_comparable(runs)


FREE = """name steps parallel.tensor_parallel batch.max_tokens_per_micro_batch checkpoint.every
rollout.tensor_parallel evaluation.every data.evaluation data.evaluation.size"""


@pytest.mark.parametrize("name", FREE.split())
def test_runs_may_differ_in_what_changes_no_result(name):
    check_comparable([measured(4, 32, 9.0, **{name: 1}), measured(8, 32, 5.0, **{name: 2})])
    check_comparable([measured(4, 32, 9.0, **{name: 1}), measured(8, 32, 5.0)])


def test_many_differences_are_counted():
    first = {f"algorithm.x{i}": 0 for i in range(9)}
    with pytest.raises(ConfigError, match="algorithm.x0 = 0 and None; .*; and 4 more"):
        check_comparable([measured(4, 32, 9.0, **first), measured(8, 32, 5.0)])


def test_gpus_and_cpus_are_not_compared():
    with pytest.raises(ConfigError, match="on GPUs and some on CPUs"):
        check_comparable([measured(4, 32, 9.0), measured(8, 32, 5.0, on_gpus=False)])


def test_a_batch_that_fits_no_other():
    runs = [measured(4, 32, 10.0), measured(8, 32, 6.0), measured(8, 48, 8.0, "odd")]
    with pytest.raises(ConfigError, match=r"odd: batch.size = 48 on 8 ranks .* weak scaling 64"):
        check_tables(runs)
    with pytest.raises(ConfigError, match="goes with no other run"):
        check_tables([measured(4, 32, 10.0, "a"), measured(4, 32, 9.0, "b")])


# The page


def page(*runs, missing=()):
    return render_page(runs, Window(4, 20), missing)


def cells(text, heading, row):
    """One row of the table below a heading."""
    body = text.split(f"## {heading}")[1]
    line = next(line for line in body.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_says_everything_that_is_asked_for():
    text = page(measured(4, 32, 10.0), measured(8, 32, [5.0, 7.0]))
    assert cells(text, "Strong scaling: 32 prompts a step", "r8b32") == [
        "r8b32", "2", "8", "6", "5 to 7", "5", "1.67", "2.00", "83.3%", "yes", "8,000",
    ]  # fmt: skip
    assert "Efficiency is at least 75% at every size, up to 8 GPUs." in text
    assert "mean of the steps 4 to 20 of every run (17 steps)" in text
    assert "Initialisation and the steps before are excluded" in text


def test_a_weak_table_and_its_sentence():
    text = page(measured(4, 32, 10.0), measured(8, 64, 20.0))
    row = cells(text, "Weak scaling: 8 prompts a step on each rank", "r8b64")
    assert row[-3:] == ["50.0%", "no", "8,000"]
    assert "at least 75% up to 4 GPUs, and below it beyond" in text


def test_operators_and_cost():
    text = page(measured(4, 32, 9.0), measured(8, 32, 4.5))
    assert cells(text, "Time by operator", "rollout") == ["rollout", "0.6", "0.6"]
    assert cells(text, "Cost", "r4b32") == ["r4b32", "4", "2.5", "10"]
    assert "GPU-hours of all its steps" in text


def test_on_cpus_nothing_is_called_a_gpu():
    text = page(measured(4, 32, 9.0, on_gpus=False), measured(8, 32, 4.5, on_gpus=False))
    assert "GPU" not in text
    assert "rank-hours" in text


def test_what_is_missing_is_said_and_every_table_is_whole():
    runs = measured(4, 32, 9.0), measured(8, 32, 4.5), measured(8, 64, 9.5)
    text = page(*runs, missing=["One thing.", "Another."])
    assert text.endswith("## Missing\n\n- One thing.\n- Another.\n")
    assert "Missing" not in page(*runs)
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, block
