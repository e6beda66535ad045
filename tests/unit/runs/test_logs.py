"""Logs by node and rank."""

import pytest

from verl_hpc.errors import ClusterError
from verl_hpc.runs.logs.read import (
    SHOWN_AT_FIRST,
    Follower,
    Line,
    attempt_directory,
    attempts_of,
    node_logs,
    parse_line,
    read_lines,
)

LABELS = {
    b"3: hello\n": (3, "hello"),
    b"03: hello\n": (3, "hello"),
    b" 3: hello\n": (3, "hello"),
    b"3:   indented\n": (3, "  indented"),
    b"3: \n": (3, ""),
    b"12:30 unlabelled\n": (None, "12:30 unlabelled"),
    b"12: 7: seven\r\n": (12, "7: seven"),
    b"srun: error: n1: task 2: Killed\n": (None, "srun: error: n1: task 2: Killed"),
    b"\n": (None, ""),
    b"3: \xff\xfe\n": (3, "\ufffd\ufffd"),
    b"3: no line end": (3, "no line end"),
}


def test_labels():
    lines = {line: Line("n0", *expected) for line, expected in LABELS.items()}
    assert {line: parse_line("n0", line) for line in LABELS} == lines


def test_times_and_logs_of_one_rank_which_have_no_labels():
    time = "2026-11-22T06:30:19"
    for log, text, line in (
        ("n0", f"3: {time} step 1\n", Line("n0", 3, "step 1", time)),
        ("n0", f"{time} srun\n", Line("n0", None, f"{time} srun")),
        ("x1000.site.rank12", f"{time} 3: step\n", Line("x1000.site", 12, "3: step", time)),
        ("n0.rank1", "native\n", Line("n0", 1, "native")),
        ("n0.rank", "1: x\n", Line("n0.rank", 1, "x")),
    ):
        assert parse_line(log, text.encode()) == line


def test_a_line_as_it_is_shown():
    assert str(Line("n0", 3, "step 1", "2026-11-22T06:30:19")) == "n0 3: 2026-11-22T06:30:19 step 1"
    assert str(Line("n0", 3, "hello")) == "n0 3: hello"
    assert str(Line("n0", None, "srun: error")) == "n0: srun: error"


def test_nodes_come_in_the_order_of_their_numbers(attempt):
    for name in ("n10", "n2", "login", "n2a"):
        (attempt / f"{name}.log").write_text("0: x\n")
    (attempt / "other.txt").write_text("")
    assert [log.stem for log in node_logs(attempt)] == ["login", "n2", "n2a", "n10"]


def test_one_ranks_lines(attempt):
    log = attempt / "n0.log"
    log.write_text("0: a\n1: b\nsrun: c\n0: d\n")
    assert [line.text for line in read_lines(log)] == ["a", "b", "srun: c", "d"]
    assert [line.text for line in read_lines(log, rank=0)] == ["a", "d"]
    assert list(read_lines(log, rank=7)) == []


def test_attempts(tmp_path, attempt):
    for name in ("10", "2"):
        (attempt.parent / name).mkdir()
    (attempt.parent / "latest").symlink_to("10")
    assert (attempts_of(tmp_path), attempt_directory(tmp_path).name) == ([0, 2, 10], "10")
    assert attempt_directory(tmp_path, 2).name == "2"
    with pytest.raises(ClusterError, match="--attempt 1: .* has logs of the attempts 0, 2, 10"):
        attempt_directory(tmp_path, 1)


def test_a_run_that_no_batch_script_started(tmp_path):
    with pytest.raises(ClusterError, match="has no logs: mpiexec has started it"):
        attempt_directory(tmp_path)
    (tmp_path / "job").mkdir()
    with pytest.raises(ClusterError, match=r"has not started yet, or could not; .* status "):
        attempt_directory(tmp_path)


def test_a_batch_script_that_started_no_ranks(tmp_path):
    (tmp_path / "job").mkdir()
    said = "setup of the site profile ended the job with status 1\n"
    (tmp_path / "job/slurm-7.log").write_text(said)
    with pytest.raises(ClusterError, match=r"started no ranks; it said .*slurm-7.log.*\nsetup of"):
        attempt_directory(tmp_path)


# Following


def add(log, text):
    with log.open("a") as file:
        file.write(text)


def shown(follower):
    return [str(line) for line in follower.news()]


def test_the_last_lines_and_then_what_is_new(tmp_path, attempt):
    log = attempt / "n0.log"
    add(log, "".join(f"0: {i}\n" for i in range(30)))
    follower = Follower(tmp_path)
    assert shown(follower) == [f"n0 0: {i}" for i in range(30 - SHOWN_AT_FIRST, 30)]
    # Half a line waits for its other half; a node that speaks later is followed as well.
    for name, text, lines in (
        ("n0", "", []),
        ("n0", "0: x\n1: y\n", ["n0 0: x", "n0 1: y"]),
        ("n0", "0: whole\n0: ha", ["n0 0: whole"]),
        ("n0", "lf\n", ["n0 0: half"]),
        ("n1", "1: b\n", ["n1 1: b"]),
    ):
        add(attempt / f"{name}.log", text)
        assert shown(follower) == lines


def test_the_next_start_is_followed_after_the_end_of_this_one(tmp_path, attempt):
    add(attempt / "n0.log", "0: a\n")
    follower = Follower(tmp_path)
    shown(follower)
    add(attempt / "n0.log", "0: saved\n")
    (attempt.parent / "1").mkdir()
    add(attempt.parent / "1/n0.log", "".join(f"0: {i}\n" for i in range(20)))
    assert shown(follower) == ["n0 0: saved", *(f"n0 0: {i}" for i in range(20))]
    assert follower.directory.name == "1"


def test_a_start_that_was_named_is_not_left(tmp_path, attempt):
    add(attempt / "n0.log", "0: a\n")
    follower = Follower(tmp_path, attempt=0)
    (attempt.parent / "1").mkdir()
    add(attempt.parent / "1/n0.log", "0: b\n")
    assert (shown(follower), follower.directory.name) == (["n0 0: a"], "0")
