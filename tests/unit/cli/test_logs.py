"""`logs` as a user meets it."""

import pytest

from tests.unit.cli.status_runs import make_run
from verl_hpc.cli import logs as verb
from verl_hpc.cli.main import main
from verl_hpc.runtime.failure import FailureReporter


@pytest.fixture
def run(here):
    """A run of two starts on two nodes."""
    run = make_run(here / "runs", "ppo_lab")
    for attempt in ("0", "1"):
        directory = run / "job/attempts" / attempt
        directory.mkdir(parents=True)
        (directory / "n0.log").write_text(f"0: zero of {attempt}\n1: one of {attempt}\n")
        (directory / "n1.log").write_text(f"2: two of {attempt}\n")
    return run


def test_the_last_start_node_by_node(run, prints):
    assert prints("logs", "ppo_lab") == "n0 0: zero of 1\nn0 1: one of 1\nn1 2: two of 1\n"


def test_a_terminal_is_told_nothing_by_what_ranks_print(run, prints):
    (run / "job/attempts/1/n0.log").write_bytes(b"0: \x1b[2Jgone\x07\tin a\xc2\x9bline\r\n")
    assert prints("logs", "ppo_lab", "--rank", "0") == "n0 0: \u241b[2Jgone\u2407\tin a\ufffdline\n"


def test_a_log_that_is_a_link_is_none(run, tmp_path, prints):
    (tmp_path / "secret").write_text("0: secret\n")
    log = run / "job/attempts/1/n1.log"
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    assert "secret" not in prints("logs", "ppo_lab")


def test_one_rank_of_one_start(run, prints):
    assert prints("logs", "ppo_lab", "--rank", "2", "--attempt", "0") == "n1 2: two of 0\n"


def test_what_is_not_there(run, refuses):
    assert "--rank 9: said nothing" in refuses("logs", "ppo_lab", "--rank", "9")
    assert "has logs of the attempts 0, 1" in refuses("logs", "ppo_lab", "--attempt", "7")
    assert "did you mean ppo_lab?" in refuses("logs", "ppo_lb")


def test_a_start_that_has_said_nothing_yet(run, called):
    (run / "job/attempts/2").mkdir()
    status, _, err = called("logs", "ppo_lab")
    assert status == 0 and "nothing yet" in err


def test_the_first_error(run, capfd):
    FailureReporter(2, 3, "n1").report(ValueError("bad"))
    report = capfd.readouterr().err
    with (run / "job/attempts/1/n1.log").open("a") as log:
        log.writelines(f"2: {line}\n" for line in report.splitlines())
    assert main(["logs", "ppo_lab", "--first-error"]) == 0
    assert capfd.readouterr().out == f"== attempt 1, n1, rank 2\n{report.lstrip()}"


def test_slurms_word_and_other_ranks_errors(run, called, prints):
    none = (1, "", "runs/ppo_lab/job/attempts/1: no error found\n")
    assert called("logs", "ppo_lab", "--first-error") == none
    log = run / "job/attempts/1/n0.log"
    log.write_text("slurmstepd: error: Detected 1 oom_kill event\n")
    told = prints("logs", "ppo_lab", "--first-error")
    assert told.startswith("== attempt 1, n0, Slurm\nslurmstepd: error")
    log.write_text(
        "".join(f"{rank}: verl_hpc: rank {rank} of 3 on n0 failed in x:\n" for rank in range(3))
    )
    told = prints("logs", "ppo_lab", "--first-error")
    assert "2 other ranks failed, too; --rank R shows one" in told


def test_following_goes_on_until_ctrl_c(run, prints, monkeypatch):
    rounds = []

    def sleep(seconds):
        rounds.append(seconds)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        with (run / "job/attempts/1/n1.log").open("a") as log:
            log.write("2: news\n")

    monkeypatch.setattr(verb.time, "sleep", sleep)
    told = prints("logs", "ppo_lab", "-f", "--rank", "2")
    assert told == "== attempt 1\nn1 2: two of 1\nn1 2: news\n"
