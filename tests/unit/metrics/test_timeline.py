"""timeline/: bounded, true after a resume, and read whatever stands in its files."""

from __future__ import annotations

import json
import os
from itertools import count, pairwise
from pathlib import Path

import pytest

from verl_hpc.metrics import timeline
from verl_hpc.metrics.timeline import (
    MAX_BYTES,
    MAX_RANKS,
    Interval,
    Timeline,
    file_of,
    open_timeline,
    read_timeline,
    step_range,
    writing_ranks,
)

T0 = 1_790_000_000.0


def clock(every: float = 1.0):
    ticks = count()
    return lambda: T0 + every * next(ticks)


def write(directory: Path, steps: range, rank: int = 0, resumed_from: int | None = None) -> None:
    with Timeline(directory, rank, resumed_from, clock()) as written:
        for step in steps:
            written.begin(step, "rollout", "rollout")
            written.begin(step, "update_actor", "train")


def steps_of(directory: Path) -> list[int]:
    return sorted({interval.step for interval in read_timeline(directory, None)})


def line(step: object, **changes: object) -> str:
    row = {"step": step, "operator": "a", "placement": "p", "start": 1.0, "stop": 2.0} | changes
    return json.dumps(row) + "\n"


def test_a_line_a_closed_interval(tmp_path):
    written = Timeline(tmp_path, 3, None, clock(0.123456))
    written.begin(1, "rollout", "generate")
    written.begin(1, "reward", "train")
    written.end()
    written.end()
    written.begin(2, "rollout", "generate")
    rows = [json.loads(row) for row in file_of(tmp_path, 3).read_text().splitlines()]
    assert rows == [
        {"step": 1, "operator": "rollout", "placement": "generate", "start": T0,
         "stop": T0 + 0.1235},
        {"step": 1, "operator": "reward", "placement": "train", "start": T0 + 0.1235,
         "stop": T0 + 0.2469},
    ]  # fmt: skip
    assert file_of(tmp_path, 3) == tmp_path / "timeline" / "rank_00003.jsonl"
    written.close()
    last = Interval(3, 2, "rollout", "generate", T0 + 0.4938, T0 + 0.6173)
    assert read_timeline(tmp_path, [2]) == [last]


def test_a_clock_that_is_set_back_gives_no_negative_interval(tmp_path):
    times = iter((5.0, 3.0))
    written = Timeline(tmp_path, 0, None, lambda: next(times))
    written.begin(1, "rollout", "")
    written.end()
    assert [(i.start, i.stop) for i in read_timeline(tmp_path, None)] == [(5.0, 5.0)]


def test_a_file_is_never_above_its_bound_and_keeps_whole_newest_steps(tmp_path):
    path, sizes, rewrites, last_inode = file_of(tmp_path, 0), [], 0, 0
    written = Timeline(tmp_path, 0, None, clock())
    for step in range(1, 3001):
        written.begin(step, "rollout", "rollout")
        written.begin(step, "update_actor", "train")
        written.end()
        if step % 10 == 0:
            sizes.append(path.stat().st_size)
            rewrites += path.stat().st_ino != last_inode
            last_inode = path.stat().st_ino
    assert MAX_BYTES * 0.9 < max(sizes) <= MAX_BYTES
    assert min(sizes[len(sizes) // 2 :]) <= MAX_BYTES // 2 + 2500
    assert rewrites < 10
    steps = [interval.step for interval in read_timeline(tmp_path, None)]
    assert steps[0] == steps[1], "the oldest step is whole"
    assert sorted(set(steps)) == list(range(steps[0], 3001))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_one_step_of_more_than_the_bound_keeps_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MAX_BYTES", 1000)
    write(tmp_path, range(1, 2))
    with Timeline(tmp_path, 0, 1, clock()) as written:
        for i in range(100):
            written.begin(2, f"operator {i}", "train")
            assert file_of(tmp_path, 0).stat().st_size <= 1000
    found = read_timeline(tmp_path, None)
    assert found[-1].operator == "operator 99"
    assert {interval.step for interval in found} == {2}


@pytest.mark.parametrize(("resumed_from", "left"), [(None, []), (0, []), (4, [1, 2, 3, 4])])
def test_resuming_drops_the_steps_that_are_done_again(tmp_path, resumed_from, left):
    write(tmp_path, range(1, 8))
    Timeline(tmp_path, 0, resumed_from).close()
    assert steps_of(tmp_path) == left
    write(tmp_path, range(5, 7), resumed_from=resumed_from)
    assert steps_of(tmp_path) == [*left, 5, 6]


def test_a_disk_that_fills_is_said_once(tmp_path, caplog):
    with Timeline(tmp_path, 0, None, clock()) as written:
        written.begin(1, "rollout", "rollout")
        written.begin(2, "rollout", "rollout")
        written._file.close()
        written._file = Path("/dev/full").open("w")  # noqa: SIM115  closed by the timeline
        for step in (3, 4, 5):
            written.begin(step, "rollout", "rollout")
    assert steps_of(tmp_path) == [1]
    (record,) = caplog.records
    full = "[Errno 28] No space left on device"
    assert record.message == f"the timeline of this rank ends here: {full}"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_stands_in_the_place_of_the_file_is_not_written_to(tmp_path, kind):
    (tmp_path / "timeline").mkdir()
    precious = tmp_path / "precious"
    precious.write_text(line(1))
    path = file_of(tmp_path, 0)
    path.symlink_to(precious) if kind == "link" else os.mkfifo(path)
    write(tmp_path, range(2, 3), resumed_from=1)
    assert precious.read_text() == line(1)
    assert steps_of(tmp_path) == [2]


def test_a_directory_that_is_a_link_or_cannot_be_made_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "timeline").touch()
    write(tmp_path, range(1, 3))
    assert len(caplog.records) == 1
    assert read_timeline(tmp_path, None) == []
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "timeline").unlink()
    (tmp_path / "timeline").symlink_to(tmp_path / "elsewhere")
    write(tmp_path, range(1, 3))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "foreign",
    [
        '{"step": 3, "operator": "a", "pl',
        "\0\0\0",
        "\xff\n",
        "[]\n",
        "[" * 100_000 + "\n",
        line(True),
        line(-1),
        line("3"),
        line(3, operator=7),
        line(3, operator="\ud800"),
        line(3, operator="\x1b[2J"),
        line(3, start=3.0),
        line(3, stop=float("inf")),
        line(3, start="nan"),
        line(3, start=10**400),
    ],
)
def test_lines_that_are_no_intervals_are_left_out(tmp_path, foreign):
    write(tmp_path, range(1, 3))
    with file_of(tmp_path, 0).open("a", encoding="latin-1") as file:
        file.write(foreign)
    assert steps_of(tmp_path) == [1, 2]
    write(tmp_path, range(3, 4), resumed_from=2)
    assert steps_of(tmp_path) == [1, 2, 3]


def test_files_of_others_are_left_out(tmp_path):
    write(tmp_path, range(1, 3), rank=2)
    directory = tmp_path / "timeline"
    (directory / "rank_2.jsonl").write_text(line(9))
    (directory / "notes.txt").write_text(line(9))
    (directory / "rank_00005.jsonl").mkdir()
    os.mkfifo(directory / "rank_00006.jsonl")
    (directory / "rank_00007.jsonl").symlink_to(directory / "notes.txt")
    assert {interval.rank for interval in read_timeline(tmp_path, None)} == {2}
    assert step_range(tmp_path) == (1, 2)


def test_some_steps_of_long_files(tmp_path):
    write(tmp_path, range(1, 900))
    write(tmp_path, range(1, 2), rank=1)
    assert step_range(tmp_path) == (1, 899)
    for wanted in ([1], [450, 451], [899], [5, 890], [], [1000]):
        found = read_timeline(tmp_path, wanted)
        expected = [(0, s, n) for s in wanted if s < 900 for n in ("rollout", "update_actor")]
        expected += [(1, 1, n) for n in ("rollout", "update_actor") if 1 in wanted]
        assert [(i.rank, i.step, i.operator) for i in found] == expected
    assert len(read_timeline(tmp_path, None)) == 1800


def test_where_nobody_writes_there_is_no_timeline(tmp_path):
    with Timeline(tmp_path, 1, None, writes=False) as silent:
        silent.begin(1, "rollout", "rollout")
    assert list(tmp_path.iterdir()) == []
    assert read_timeline(tmp_path / "none", None) == []
    assert step_range(tmp_path) is None


def test_small_worlds_write_on_all_ranks_and_large_ones_on_some():
    assert writing_ranks(4, {"train": (0, 1), "rollout": (2, 3)}) == {0, 1, 2, 3}
    assert writing_ranks(64, {}) == set(range(64))
    placements = {"train": range(1000, 1500), "rollout": range(1501, 4096), "none": ()}
    ranks = sorted(writing_ranks(4096, placements))
    assert len(ranks) == MAX_RANKS and {0, 1000, 1501} <= set(ranks)
    assert max(b - a for a, b in pairwise(ranks)) <= 70
    assert writing_ranks(1000, {f"p{i}": (i,) for i in range(200)}) == set(range(MAX_RANKS))


def test_a_run_on_fewer_ranks_forgets_the_steps_that_others_did(tmp_path):
    for rank in range(4):
        write(tmp_path, range(1, 6), rank)
    open_timeline(tmp_path, 0, 2, {"train": (0, 1)}, resumed_from=3).close()
    left = {r: [i.step for i in read_timeline(tmp_path, None) if i.rank == r][-1] for r in range(4)}
    assert left == {0: 3, 1: 5, 2: 3, 3: 3}, "rank 1 does so itself"
    open_timeline(tmp_path, 0, 2, {"train": (0, 1)}, resumed_from=None).close()
    names = {path.name for path in (tmp_path / "timeline").iterdir()}
    assert names == {"rank_00000.jsonl", "rank_00001.jsonl"}
