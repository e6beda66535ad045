"""Disks and clocks of nodes."""

from verl_hpc.runtime.preflight.node import judge_clocks, judge_writing, write_speed


def test_writing_measures_and_leaves_nothing(tmp_path):
    speed = write_speed(tmp_path, 0)
    assert speed > 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_made(tmp_path):
    assert write_speed(tmp_path / "jobs/17", 0) > 0


def test_a_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    assert write_speed(tmp_path / "file/17", 0) == "Not a directory"


def judge(speeds, floor=None):
    return judge_writing(speeds, "scratch", "/tmp", floor)


def test_speeds_are_reported_where_there_is_no_floor():
    verdict = judge({"n0": 1.5, "n1": 0.01})
    assert (verdict.state, verdict.found) == ("ok", "/tmp: 0.01 to 1.50 GB/s a node")


def test_a_slow_node():
    verdict = judge({"n0": 1.5, "n1": 0.1, "n2": 1.0}, 1.0)
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert judge({"n0": 1.5}, 1.0).state == "ok"


def test_where_all_are_slow_none_is_to_blame():
    verdict = judge({"n0": 0.1, "n1": 0.1}, 1.0)
    assert (verdict.state, verdict.nodes) == ("fails", ())


def test_a_node_that_cannot_write():
    verdict = judge({"n0": 1.5, "n1": "Read-only file system"})
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert "n1: Read-only file system" in verdict.found
    everywhere = judge({"n0": "Permission denied", "n1": "Permission denied"})
    assert (everywhere.state, everywhere.nodes) == ("fails", ())


def test_clocks():
    assert judge_clocks({"n0": 0.0, "n1": 0.003, "n2": -0.5}, 1.0).state == "ok"
    verdict = judge_clocks({"n0": 0.0, "n1": 30.0, "n2": 0.01}, 1.0)
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert "n1 +30.0 s" in verdict.found


def test_the_first_node_may_be_the_one_that_is_off():
    verdict = judge_clocks({"n0": 0.0, "n1": 30.0, "n2": 30.01}, 1.0)
    assert verdict.nodes == ("n0",)


def test_of_two_clocks_either_may_be_right():
    verdict = judge_clocks({"n0": 0.0, "n1": 30.0}, 1.0)
    assert (verdict.state, verdict.nodes) == ("fails", ())
