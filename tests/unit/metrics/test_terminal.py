"""What a run prints."""

from __future__ import annotations

import io
import math
import sys
import time

from rich.console import Console

from verl_hpc.metrics.names import SCORE
from verl_hpc.metrics.terminal import LineView, LiveView, Pace

VALUES = {
    SCORE: 0.4312, "val/score/mean": 0.5, "actor/kl_loss": 0.0012, "actor/entropy": 1.25,
    "response_length/mean": 312.0, "perf/throughput": 6200.0, "reshard/received_bytes": 3 * 2**30,
    "timing_s/rollout": 6.0, "timing_s/update_actor": 3.0, "timing_s/reward": 0.6,
    "timing_s/advantages": 0.2, "timing_s/step": 10.0,
}  # fmt: skip


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_a_step(capsys):
    view = LineView(total_steps=200)
    view.write(12, VALUES)
    view.close()
    assert capsys.readouterr().out == (
        "step  12/200 | reward 0.4312 | val score 0.5 | kl 0.0012 | entropy 1.25 | length 312"
        " | tok/s/rank 6,200 | resharded 3.00 GiB"
        " | 10.0s (rollout 60%, update_actor 30%, reward 6%)"
        " | eta 31m 20s\n"
    )


def test_no_time_is_left_where_none_is_known_or_nothing_is_to_do(capsys):
    view = LineView(total_steps=2)
    view.write(0, {SCORE: 0.5})
    view.write(1, {"timing_s/step": 1.0})
    view.write(2, {"timing_s/step": 1.0})
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "step 0/2 | reward 0.5"
    assert second.endswith("| eta 1.0s")
    assert "eta" not in last
    live = LiveView(console := terminal(), "demo", total_steps=2)
    live.write(2, {"timing_s/step": 1.0})
    live.close()
    assert "eta" not in shown(console)


def test_operators_that_overlap_have_seconds(capsys):
    values = VALUES | {"timing_s/rollout": 9.0, "timing_s/wait": 2.0}
    LineView(total_steps=200).write(12, values)
    words = "(longest of all ranks; they overlap: rollout 9.0s, update_actor 3.0s, wait 2.0s)"
    assert f" | 10.0s {words} | " in capsys.readouterr().out
    for of_step, told in ((values, True), (VALUES, False)):
        view = LiveView(console := terminal(), "demo", total_steps=200)
        view.write(12, of_step)
        view.close()
        assert ("longest of all ranks; they overlap" in shown(console)) is told


def test_lines_are_plain_ascii(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    view = LineView(total_steps=3)
    for step, values in enumerate((VALUES, {}, {SCORE: math.nan})):
        view.write(step, values)
    out = capsys.readouterr().out
    assert out.isascii() and not {"\x1b", "\r"} & set(out)
    assert len(out.splitlines()) == 3


def test_pace_is_the_mean_of_recent_steps():
    pace = Pace(total_steps=100)
    assert pace.remaining(0, {}) is None
    for step in range(30):
        pace.remaining(step, {"timing_s/step": 1000.0})
    for step in range(30, 50):
        pace.remaining(step, {"timing_s/step": 2.0})
    assert pace.remaining(50, {}) == 100.0


def test_live_view_shows_stage_progress_and_figures():
    console = terminal()
    view = LiveView(console, "demo  grpo", total_steps=200, first_step=11)
    view.stage("rollout[0]")
    time.sleep(0.6)
    assert "step 11/200" in shown(console)
    assert "rollout[0]" in shown(console)
    view.write(12, VALUES)
    view.write(13, {SCORE: 0.5, "timing_s/rollout": 1.0, "timing_s/step": 1.0})
    view.close()
    text = shown(console)
    for word in ("demo  grpo", "step 13/200", "0.5", "1.25", "312", "6,200", "3.00 GiB", "eta"):
        assert word in text
    assert "▁" in text
    assert "█" in text


def test_live_view_shows_the_cursor_puts_prints_above_itself_and_gives_stdout_back():
    before = sys.stdout, sys.stderr
    console = terminal()
    view = LiveView(console, "demo", total_steps=2)
    assert shown(console).rfind("\x1b[?25h") > shown(console).rfind("\x1b[?25l")
    print("a word from elsewhere")
    view.write(1, {SCORE: math.nan, "actor/grad_norm": math.inf})
    view.close()
    assert (sys.stdout, sys.stderr) == before
    text = shown(console)
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    assert text.index("a word from elsewhere") < text.rindex("demo")
    assert "nan" in text
