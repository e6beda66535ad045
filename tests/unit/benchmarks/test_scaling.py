"""Tables of scaling on paper."""

import argparse
import json
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from benchmarks import scaling
from benchmarks.figures import FROM, TO
from benchmarks.scaling import numbers
from benchmarks.scaling_paper import Step, breaks_at, breaks_at_of_best, found, own, row_of, rows_of
from benchmarks.scaling_shapes import launched, models
from benchmarks.scaling_tables import (
    beside_table,
    breaks_table,
    picture,
    record_of,
    strong_table,
    weak_table,
)
from tests.unit.cluster.test_launch_configs import DENSE, MODELS, RUNS, num_ranks
from tests.unit.layout.models import PUBLISHED
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import architecture_from

SHAPES = {shape.name: shape for shape in [*models(), *launched()]}


def step(num_ranks, rollout, update, sequences=64):
    operators = {"rollout": rollout, "update_actor": update}
    terms = {"rollout": {"memory": 0.75 * rollout, "decode_steps": 0.25 * rollout}}
    sizes = num_ranks, sequences, 100.0 * sequences, rollout + update
    return Step(*sizes, operators, terms, 0.3, "TP1", 9.0)


def scripted(*steps):
    """A finder that knows these steps, and refuses other sizes."""
    known = {one.num_ranks: one for one in steps}

    def find(shape, num_ranks):
        if num_ranks not in known:
            raise ConfigError(f"not on {num_ranks}")
        return known[num_ranks]

    return find


STRONG = scripted(step(16, 8.0, 8.0), step(32, 6.0, 4.0), step(64, 5.0, 2.0))


def test_a_row_says_what_is_lost_and_where():
    row = row_of(step(16, 8.0, 8.0), step(64, 5.0, 2.0))
    assert row.efficiency == pytest.approx(16 * 16 / (64 * 7))
    assert row.lost == {"rollout": pytest.approx(3.0), "update_actor": pytest.approx(0.0)}
    assert row.most == "rollout 100%"
    assert row.lost_terms == {"memory": pytest.approx(2.25), "decode_steps": pytest.approx(0.75)}
    # With the batch grown alike nothing is lost.
    again = row_of(step(16, 8.0, 8.0), step(64, 8.0, 8.0, sequences=256))
    assert again.efficiency == 1.0 and again.most == ""


def test_rows_are_held_against_the_first_size_that_fits():
    rows = rows_of(SHAPES["Qwen2.5-7B"], (8, 16, 32, 64), STRONG, weak=False)
    assert [row.why_not for row in rows] == ["not on 8", "", "", ""]
    assert [row.efficiency for row in rows] == [0.0, 1.0, 0.8, pytest.approx(4 / 7)]
    kept, broken = breaks_at(rows)
    assert (kept.num_ranks, broken.num_ranks) == (32, 64)
    assert breaks_at_of_best(rows).num_ranks == 64
    assert breaks_at(rows[:3]) == (rows[2], None)


def test_a_size_better_than_the_first_is_what_the_second_rule_holds_others_against():
    find = scripted(step(8, 30.0, 10.0), step(16, 5.0, 5.0), step(32, 4.0, 3.0))
    rows = rows_of(SHAPES["Qwen2.5-7B"], (8, 16, 32), find, weak=False)
    assert [row.efficiency for row in rows] == [1.0, 2.0, pytest.approx(10 / 7)]
    assert breaks_at(rows)[1] is None and breaks_at_of_best(rows).num_ranks == 32


def test_a_batch_grows_with_the_ranks():
    shape = SHAPES["ppo_70b"]
    assert shape.grown(shape.num_ranks).config == shape.config
    assert shape.grown(4 * shape.num_ranks).config.batch.size == 4 * shape.config.batch.size
    assert shape.grown(1).config.batch.size == shape.config.batch.mini_batches
    assert shape.with_batch(2).grown(1) is None
    (row,) = rows_of(shape.with_batch(2), (1,), STRONG, weak=True)
    assert row.step is None and "less than one" in row.why_not


def test_models_are_the_published_ones():
    for name, shape in SHAPES.items():
        if name in PUBLISHED:
            mine = architecture_from(PUBLISHED[name][0])
            for size in ("num_layers", "hidden_size", "ffn_size", "num_experts", "vocab_size"):
                assert getattr(shape.arch, size) == getattr(mine, size), (name, size)
    assert {"Qwen2.5-7B", "Mixtral-8x7B", "Qwen3-30B-A3B"} <= set(PUBLISHED) & set(SHAPES)


@pytest.mark.parametrize("name", DENSE)
def test_runs_of_launch_have_the_size_of_their_scripts(name):
    shape = SHAPES[name]
    assert shape.num_ranks == num_ranks(name)
    assert shape.arch == architecture_from(MODELS[name])
    tp, pp, dp, *_ = RUNS[name][1]
    one = own(shape, shape.num_ranks)
    assert one.layout.startswith(f"TP{tp} PP{pp} DP{dp}")
    assert one.spare_gib >= 6.0
    assert found(shape, shape.num_ranks).seconds <= 1.001 * one.seconds


def test_a_layout_that_does_not_divide_or_fit_is_a_row_that_says_so():
    rows = rows_of(SHAPES["ppo_70b"], (8, 32, 64), own, weak=False)
    assert "does not divide" in rows[0].why_not
    assert rows[1].why_not.startswith("does not fit: ")
    assert rows[2].efficiency == 1.0


def test_terms_make_up_every_operator():
    one = own(SHAPES["grpo_8b"], 64)
    for name, seconds in one.operators.items():
        assert sum(one.terms[name].values()) == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["Qwen2.5-7B", "Mixtral-8x7B"])
def test_strong_scaling_ends_and_weak_scaling_does_not(name):
    shape, sizes = SHAPES[name], (16, 128, 1024)
    strong, weak = (rows_of(shape, sizes, found, weak=weak) for weak in (False, True))
    assert all(a.step.seconds > b.step.seconds for a, b in pairwise(strong))
    assert strong[-1].efficiency < 0.75 < strong[1].efficiency
    assert strong[-1].most.startswith("rollout")
    assert all(row.efficiency > 0.95 for row in weak)
    assert [row.sequences for row in weak] == [64 * size for size in sizes]
    # A mixture of experts is not trained: there is no ledger of it.
    assert (strong[0].step.spare_gib is None) == bool(shape.arch.num_experts)


def test_tables():
    shape = SHAPES["Qwen2.5-7B"]
    rows = rows_of(shape, (8, 16, 32, 64), STRONG, weak=False)
    lines = strong_table(rows, 8).splitlines()
    assert lines[2] == "| 8 | 1 | - | - | - | - | - | - | - |"
    assert lines[5] == "| 64 | 8 | 7.00 | 914 | 57% | 30.0% | 9 | rollout 100% | TP1 |"
    last = beside_table(rows, rows, 4).splitlines()[-1]
    assert last.startswith("| 64 | 16 | 7.00 | 914 |") and last.endswith("| 7.00 | TP1 |")
    assert weak_table({"a": rows}).splitlines()[-1] == "| a | 4 | 16.0 | - | 100% | 80% | 57% |"
    cells = "| a | 32 | 64 | 57% | rollout 100% | memory +2.2 s, decode_steps +0.75 s | 64 |"
    assert breaks_table({"a": rows}).splitlines()[-1] == cells
    assert breaks_table({"a": rows[:3]}).splitlines()[-1] == "| a | 32 | none | - | - | - | - |"
    ET.fromstring(picture({"a < b": rows}))
    records = record_of(shape, rows)
    assert records[0] == {"ranks": 8, "sequences": 16384, "why_not": "not on 8"}
    assert records[3]["lost"] == {"rollout": 3.0, "update_actor": 0.0}


def test_the_page(tmp_path, monkeypatch, capsys):
    few = [SHAPES["Qwen2.5-7B"]], [SHAPES["sft_8b"]]
    monkeypatch.setattr(scaling, "models", lambda: few[0])
    monkeypatch.setattr(scaling, "launched", lambda: few[1])
    files = [tmp_path / name for name in ("page.md", "raw.json", "picture.svg")]
    words = ["--markdown", files[0], "--json", files[1], "--picture", files[2]]
    files[0].write_text(f"# A title\n\n{FROM}\n{TO}\nWhat it says.\n")
    assert scaling.main(["--sizes", "64,8", *map(str, words)]) == 0
    page = files[0].read_text()
    assert page.startswith("# A title") and page.endswith("What it says.\n")
    assert "## Qwen2.5-7B: 1024 prompts a step" in page
    assert "## launch/sft_8b.sbatch: 128 examples a step; its own size is 8 GPUs" in page
    assert "`python -m benchmarks.scaling --sizes 64,8" in page
    raw = json.loads(files[1].read_text())
    assert [row["ranks"] for row in raw["models"]["Qwen2.5-7B"]["strong"]] == [8, 64]
    assert set(raw["launched"]["sft_8b"]) == {"strong", "found", "weak"}
    assert "<svg" in files[2].read_text()
    capsys.readouterr()


def test_numbers():
    assert numbers("4,1,2") == (1, 2, 4)
    for text in ("", "1,", "0", "1;2", "-1", "one"):
        with pytest.raises(argparse.ArgumentTypeError, match="numbers from 1 up"):
            numbers(text)
