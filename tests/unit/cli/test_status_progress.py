"""Pace and figures from the end of metrics.jsonl."""

import pytest

from tests.unit.cli.status_runs import make_run, work
from verl_hpc.cli.status_progress import RECENT, Progress, read_progress, read_tail
from verl_hpc.cli.status_text import ago


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, steps=40)


def test_a_run_that_has_done_nothing(run):
    assert read_progress(run) == Progress()


def test_means_are_over_the_last_steps(run):
    work(run, 30, **{"timing_s/step": lambda step: 100.0 if step <= 20 else 10.0})
    progress = read_progress(run)
    assert (progress.step, progress.num_recent, progress.seconds) == (30, RECENT, 10.0)
    assert progress.longest_s == 6.0


def test_step_0_only_evaluates(run):
    work(run, 1, first=0, **{"val/score/mean": 0.5})
    progress = read_progress(run)
    assert (progress.step, progress.seconds) == (0, None)
    assert progress.figures["val/score/mean"].value == 0.5
    assert progress.remaining_s(40) is None


def test_only_the_end_of_a_long_file_is_read(run):
    work(run, 400)
    path = run / "metrics.jsonl"
    rows = read_tail(path, 2000)
    assert 1 < len(rows) < 20
    assert (rows[-1]["step"], len(read_tail(path))) == (400, 400)


@pytest.mark.parametrize("seconds, text", [(-5, "just now"), (0.5, "just now"), (90, "1m 30s ago")])
def test_how_long_ago(seconds, text):
    assert ago(seconds) == text
