"""metrics.jsonl: one line a step whatever happened to the run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from verl_hpc.errors import DataError
from verl_hpc.metrics.log import MetricsLog, read_metrics


def write_steps(directory: Path, steps: range, resumed_from: int | None = None) -> None:
    with MetricsLog(directory, resumed_from) as log:
        for step in steps:
            log.write(step, {"actor/pg_loss": step / 3})


def steps_of(directory: Path) -> list[int]:
    return [row["step"] for row in read_metrics(directory)]


def test_a_line_is_one_flat_object(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(1, {"actor/lr": 1e-6, "reshard/received_bytes": 2**40})
        assert steps_of(tmp_path) == [1], "it can be read while the run goes on"
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert list(row) == ["step", "time", "actor/lr", "reshard/received_bytes"]
    assert (row["actor/lr"], row["reshard/received_bytes"]) == (1e-6, 2**40)


def test_resuming_drops_the_steps_that_are_done_again(tmp_path):
    write_steps(tmp_path, range(8))
    write_steps(tmp_path, range(5, 10), resumed_from=4)
    rows = [(row["step"], row["actor/pg_loss"]) for row in read_metrics(tmp_path)]
    assert rows == [(step, step / 3) for step in range(10)]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    write_steps(tmp_path, range(3))
    assert steps_of(tmp_path) == [0, 1, 2], "starting over drops every step"


@pytest.mark.parametrize("rest", ['{"step": 3, "ti', "\0\0\0\0", '{"step": 3, "time": 1.0}'])
def test_a_torn_last_line_is_repaired(tmp_path, rest):
    write_steps(tmp_path, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(rest)
    assert steps_of(tmp_path)[:2] == [1, 2]
    write_steps(tmp_path, range(3, 5), resumed_from=2)
    assert steps_of(tmp_path) == [1, 2, 3, 4]
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize(
    "line", ["[1]", "3", "null", '"text"', "{}", '{"step": null}', '{"step": "1"}', "[" * 100_000]
)
def test_a_line_that_is_no_row_is_left_out(tmp_path, line):
    write_steps(tmp_path, range(1, 3))
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{line}\n{path.read_text()}")
    assert steps_of(tmp_path) == [1, 2]
    write_steps(tmp_path, range(2, 4), resumed_from=1)
    assert steps_of(tmp_path) == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 3


def test_a_kill_while_the_file_is_rewritten_loses_nothing(tmp_path, monkeypatch):
    write_steps(tmp_path, range(3))
    monkeypatch.setattr("os.fsync", lambda descriptor: sys.exit(1))
    with pytest.raises(SystemExit):
        MetricsLog(tmp_path, resumed_from=1)
    assert steps_of(tmp_path) == [0, 1, 2]


def test_values_that_are_not_finite_are_null_and_named(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(1, {"a/nan": math.nan, "a/inf": -math.inf, "a/fine": 1.0})
    text = (tmp_path / "metrics.jsonl").read_text()
    row = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (row["a/nan"], row["a/inf"], row["a/fine"]) == (None, None, 1.0)
    assert row["not_finite"] == {"a/nan": "nan", "a/inf": "-inf"}


def test_a_directory_without_metrics_is_named_and_what_is_no_regular_file(tmp_path):
    with pytest.raises(DataError, match=r"metrics\.jsonl: no such file"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"metrics\.jsonl: cannot be read"):
        read_metrics(tmp_path)


def test_importing_the_log_is_cheap():
    code = (
        "import sys, verl_hpc.metrics.log, verl_hpc.metrics.report, verl_hpc.metrics.sinks\n"
        "print({'torch', 'numpy', 'matplotlib', 'tensorboard'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
