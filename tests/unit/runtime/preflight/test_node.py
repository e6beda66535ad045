"""Disks and clocks of nodes."""

import pytest

from verl_hpc.runtime.preflight.node import judge_clocks, judge_writing, write_speed


def test_writing_measures_and_leaves_nothing(tmp_path):
    assert write_speed(tmp_path, 0) > 0
    assert list(tmp_path.iterdir()) == []
    assert write_speed(tmp_path / "jobs/17", 0) > 0, "a directory that is not there is made"
    (tmp_path / "file").write_text("")
    assert write_speed(tmp_path / "file/17", 0) == "Not a directory"


READ_ONLY = "Read-only file system"
WRITING = [
    ([1.5, 0.01], None, "ok", (), "/tmp: 0.01 to 1.50 GB/s a node"),
    ([1.5, 0.1, 1.0], 1.0, "fails", ("n1",), ""),
    ([1.5], 1.0, "ok", (), ""),
    ([0.1, 0.1], 1.0, "fails", (), ""),
    ([1.5, READ_ONLY], None, "fails", ("n1",), f"n1: {READ_ONLY}"),
    ([READ_ONLY, READ_ONLY], None, "fails", (), ""),
]
CLOCKS = [
    ([0.0, 0.003, -0.5], "ok", (), ""),
    ([0.0, 30.0, 0.01], "fails", ("n1",), "n1 +30.0 s"),
    ([0.0, 30.0, 30.01], "fails", ("n0",), ""),
    ([0.0, 30.0], "fails", (), ""),
]


@pytest.mark.parametrize(("speeds", "floor", "state", "blamed", "words"), WRITING)
def test_verdicts_on_writing(speeds, floor, state, blamed, words):
    """Where all are slow, or none can write, no node is to blame."""
    verdict = judge_writing({f"n{i}": s for i, s in enumerate(speeds)}, "scratch", "/tmp", floor)
    assert (verdict.state, verdict.nodes) == (state, blamed)
    assert words in verdict.found


@pytest.mark.parametrize(("offsets", "state", "blamed", "words"), CLOCKS)
def test_verdicts_on_clocks(offsets, state, blamed, words):
    """Either of two clocks may be right; the one of three that is off is to blame."""
    verdict = judge_clocks({f"n{i}": offset for i, offset in enumerate(offsets)}, 1.0)
    assert (verdict.state, verdict.nodes) == (state, blamed)
    assert words in verdict.found
