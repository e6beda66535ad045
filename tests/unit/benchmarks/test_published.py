"""Published steps: the default factors predict them as well as their page says."""

from functools import lru_cache
from itertools import compress
from pathlib import Path

import pytest

from benchmarks.published.fit import spread
from benchmarks.published.rows import is_held_out, read_rows
from benchmarks.published.table import GOAL, table
from verl_hpc.planner.timing.cost import PUBLISHED, Efficiency

PAGE = Path(__file__).parents[3] / "benchmarks/results/2026-11-published-steps.md"
ROWS = read_rows()


@lru_cache
def ratios():
    """Predicted by published seconds of each row."""
    return [row.predict(Efficiency()).seconds / row.seconds for row in ROWS]


def kind(row):
    """What decides the band of a step."""
    if row.arch.latent:
        return "latent attention"
    return "staleness" if row.config.rollout.staleness else "on policy"


def held_out(of_kind):
    pairs = zip(ROWS, ratios(), strict=True)
    return [ratio for row, ratio in pairs if row.held_out and kind(row) == of_kind]


def test_rows_are_held_out_by_their_name_alone():
    assert len(ROWS) == 52 and sum(row.held_out for row in ROWS) == 27
    assert is_held_out("Qwen3-30B-A3B on 64 H100, on policy")
    assert not is_held_out("Qwen3-32B on 64 H100, on policy")


def test_every_row_has_its_source():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(row.source["url"].startswith("https://") for row in ROWS)


def test_steps_on_policy_that_were_held_out_are_within_the_goal():
    assert len(held_out("on policy")) == 5
    assert all(abs(ratio - 1) < GOAL for ratio in held_out("on policy"))


def test_other_steps_that_were_held_out_are_as_far_off_as_the_page_says():
    off = sorted(abs(ratio - 1) for ratio in held_out("staleness"))
    assert sum(value <= GOAL for value in off) == 5 and off[-1] < 0.6
    times = sorted(1 / ratio for ratio in held_out("latent attention"))
    assert len(times) == 12 and (round(times[0], 1), round(times[-1], 1)) == (1.6, 2.4)


def test_nine_of_ten_published_steps_are_within_the_band():
    within = []
    for of_kind in ("on policy", "staleness", "latent attention"):
        mine = [kind(row) == of_kind for row in ROWS]
        rows = list(compress(ROWS, mine))
        basis = PUBLISHED.of_run(rows[0].config.rollout.staleness, [rows[0].arch])
        assert spread(rows, Efficiency()) == pytest.approx(basis.spread, abs=0.001)
        low, high = basis.band(1.0)
        near = [low <= 1 / ratio <= high for ratio in compress(ratios(), mine)]
        within.append((sum(near), len(near)))
    assert within == [(20, 22), (16, 18), (12, 12)]


def test_the_page_has_the_table_as_it_is_printed():
    assert table(ROWS, Efficiency()) in PAGE.read_text("utf-8")
