"""Finding the failure that ended a job in the logs of all its ranks."""

import itertools
from types import SimpleNamespace

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.runs.logs.errors import first_error
from verl_hpc.runtime.failure import FailureReporter, ending_the_job

TRACEBACK = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in <module>
    raise ValueError("bad")
ValueError: bad
"""


def write(attempt, node, *parts):
    """A node's log: (rank, text) as srun --label writes it, plain text as it is."""
    lines = []
    for part in parts:
        rank, text = part if isinstance(part, tuple) else (None, part)
        prefix = "" if rank is None else f"{rank}: "
        lines += [f"{prefix}{line}\n" for line in text.splitlines() or [""]]
    (attempt / f"{node}.log").write_text("".join(lines))


@pytest.fixture
def reports(capfd, monkeypatch):
    """What ranks 5 and 2, failing in this order, really say."""
    monkeypatch.setattr("verl_hpc.runtime.failure._GRACE_S", 0.0)
    count = itertools.count(1)
    store = SimpleNamespace(add=lambda key, amount: next(count))
    texts = {}
    for rank in (5, 2):
        reporter = FailureReporter(rank, 8, f"n{rank // 4}")
        reporter.store, reporter.stage = store, "rollout to train"
        try:
            raise ValueError("first line\n\nthird line")
        except ValueError as error:
            reporter.report(error)
        texts[rank] = capfd.readouterr().err
    return texts


def test_our_report_is_found_whole(attempt, reports, monkeypatch):
    write(attempt, "n0", (0, "step 1"), (2, reports[2]), (2, "Abort(1) on node 2"))
    write(attempt, "n1", (5, "step 1"), (5, reports[5]), (5, "Abort(1) on node 5"), (5, "more"))
    failure = first_error(attempt)
    assert (failure.node, failure.rank, failure.num_others) == ("n1", 5, 0)
    assert "\n".join(failure.lines) == reports[5].strip()
    said = "verl_hpc: rank 5 of 8 on n1 failed in rollout to train: ValueError: first line"
    assert (failure.lines[0], failure.lines[-1]) == (said, "third line")


def test_other_ranks_lines_in_between_are_left_out(attempt, reports):
    lines = reports[5].splitlines()
    mixed = list(itertools.chain.from_iterable(((5, line), (4, f"noise {line}")) for line in lines))
    write(attempt, "n1", *mixed)
    assert "\n".join(first_error(attempt).lines) == reports[5].strip()
    write(attempt, "n1", (5, reports[5] + "\n".join(["noise"] * 1000)))
    assert len(first_error(attempt).lines) == 400, "a report has an end whatever follows"


def test_our_report_counts_more_than_a_traceback_that_was_logged_before(attempt, reports):
    write(attempt, "n0", (0, TRACEBACK), (1, "on we go"))
    write(attempt, "n1", (5, reports[5]))
    assert first_error(attempt).rank == 5


def test_of_two_reports_the_one_with_the_earlier_time(attempt):
    report = "2026-11-22T06:30:{} verl_hpc: rank {} of 8 on {} failed in x: ValueError: bad"
    write(attempt, "n0", (0, "verl_hpc: rank 0 of 8 on n0 failed in x: ValueError: no time"))
    write(attempt, "n1", (2, report.format(19, 2, "n1")))
    write(attempt, "n2", (5, report.format("07", 5, "n2")))
    failure = first_error(attempt)
    assert (failure.rank, failure.time, failure.num_others) == (5, "2026-11-22T06:30:07", 2)
    assert failure.lines[0].startswith("verl_hpc: rank 5")


def test_what_a_parent_says_of_a_rank_that_crashed(attempt):
    text = "verl_hpc: rank 1 on n0 failed in reward: it was ended by SIGSEGV"
    crash = 'Fatal Python error: Segmentation fault\n\n  File "reward.py", line 3 in score'
    write(attempt, "n0", (0, "step 1"), (1, f"{text}\n{crash}"), (0, "verl_hpc: ended"))
    assert "\n".join(first_error(attempt).lines) == f"{text}\n{crash}"


def test_several_reports_are_counted(attempt, capfd):
    for rank in (0, 1, 2):
        FailureReporter(rank, 3, "n0").report(ValueError(f"of {rank}"))
    texts = capfd.readouterr().err.split("\nverl_hpc")[1:]
    write(attempt, "n0", *((rank, f"verl_hpc{text}") for rank, text in enumerate(texts)))
    failure = first_error(attempt)
    assert (failure.rank, failure.num_others) == (0, 2)
    assert first_error(attempt, rank=1).lines[-1] == "ValueError: of 1"


def test_an_error_that_all_ranks_raise(attempt, capfd):
    error = ConfigError("run.yaml:\n  sed: no such setting; did you mean seed?")
    error.agreed = True
    comm = SimpleNamespace(rank=0, meet=lambda: None, leave=lambda: None)
    with pytest.raises(SystemExit), ending_the_job(comm, FailureReporter(0, 2, "n0")):
        raise error
    write(attempt, "n0", (0, capfd.readouterr().err), "srun: error: n0: task 0: Exited with 1")
    lines = ("ConfigError: run.yaml:", "  sed: no such setting; did you mean seed?")
    assert first_error(attempt).lines == lines


def test_a_bare_traceback_with_its_chain(attempt):
    """Nothing marks its end, but it has one; of two that are far apart the first counts."""
    noise = "".join(f"step {i}\n" for i in range(100))
    write(attempt, "n0", (1, TRACEBACK + noise + TRACEBACK.replace("bad", "worse")))
    lines = first_error(attempt).lines
    assert "\n".join(lines).startswith(TRACEBACK.strip())
    assert len(lines) < 40 and not any("worse" in line for line in lines)


@pytest.mark.parametrize("who", ["slurmstepd", "slurmstepd-n0"])
def test_a_rank_that_was_killed_says_nothing_but_slurm_does(attempt, who):
    words = f"{who}: error: Detected 1 oom_kill event"
    write(attempt, "n0", (0, "step 1"), words)
    failure = first_error(attempt)
    assert (failure.rank, failure.lines) == (None, (words,))


def test_what_srun_says_in_the_batch_scripts_log(attempt):
    (attempt.parent / "1").mkdir()
    write(attempt, "n0", (0, "step 1"))
    (attempt.parent.parent / "slurm-77.log").write_text(
        "2026-11-22T06:30:19 attempt 0: job 77 on n0\nsrun: error: n0: task 1: Killed\n"
        "2026-11-22T06:31:20 attempt 1: job 77 on n0\nsrun: error: n0: task 0: Out Of Memory\n"
    )
    assert first_error(attempt).lines == ("srun: error: n0: task 1: Killed",)
    assert first_error(attempt.parent / "1").lines == ("srun: error: n0: task 0: Out Of Memory",)
    assert first_error(attempt, rank=1) is None


@pytest.mark.parametrize(
    "words", ["bwrap: Can't mkdir parents for /x: Read-only file system", "FATAL:   no such image"]
)
def test_a_container_that_does_not_start(attempt, words):
    write(attempt, "n0", (1, words), "srun: error: n0: task 1: Exited with exit code 1")
    failure = first_error(attempt)
    assert (failure.rank, failure.lines[0]) == (1, words)


def test_a_log_of_one_rank_names_its_node(attempt):
    write(attempt, "n0.rank0", "step 1")
    write(attempt, "n1.rank5", "2026-11-22T12:00:02 ConfigError: no such file")
    failure = first_error(attempt)
    assert (failure.node, failure.rank, failure.time) == ("n1", 5, "2026-11-22T12:00:02")
    assert failure.lines == ("ConfigError: no such file",)
    assert first_error(attempt, rank=0) is None


def test_logs_without_an_error(attempt):
    assert first_error(attempt) is None
    write(attempt, "n0", (0, "ValueError: is no start of a line of ours"), (1, "ConfigError"))
    assert first_error(attempt) is None


def test_memory_that_was_full_comes_before_what_peers_say(tmp_path, attempt):
    """The kernel ended a rank and all that watched over it; another node lost its connection."""
    peer = "verl_hpc: rank 9 of 16 on n1 failed in rollout: RuntimeError: gone"
    (attempt / "n1.log").write_text(f"9: 2026-11-22T12:00:02 {peer}\n")
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=45.0. Some of the step tasks "
    killed += "have been OOM Killed."
    (tmp_path / "job/slurm-45.log").write_text(f"2026-11-22T12:00:00 attempt 0: job 45\n{killed}\n")
    assert first_error(attempt).lines == (killed,)
    (tmp_path / "job/slurm-45.log").unlink()
    (attempt / "n0.log").write_text(f"{killed}\n")
    failure = first_error(attempt)
    assert (failure.node, failure.lines) == ("n0", (killed,))
    assert "rank 9" in first_error(attempt, rank=9).lines[0]
