"""report.html."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from verl_hpc.cli.main import main
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.names import CHARTS
from verl_hpc.metrics.report import write_report
from verl_hpc.metrics.timeline import Timeline

FACTS = {
    "recipe": "rl", "state": "finished", "total_steps": 30, "commit": "1a2b3c4",
    "layouts": {"training": "tp 4, dp 2", "rollout": "tp 2"},
    "config": "name: demo\nrecipe: grpo\n",
}  # fmt: skip
SECONDS = {"rollout": 6.0, "rollout/reshard": 1.0, "update_actor": 3.0, "step": 10.0}
TIMES = {f"timing_s/{name}": seconds for name, seconds in SECONDS.items()}
SENT = {"received_bytes": 3 * 2**30, "minimum_bytes": 2 * 2**30, "seconds": 1.0}
RESHARDING = {f"reshard/{name}": value for name, value in SENT.items()}
CURVES = [name for chart in CHARTS for name in chart.curves]
NUMBERED = {name: number / 10 for number, name in enumerate(CURVES, 1)}
VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Counts the tags of a page and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(page: str) -> dict[str, int]:
    parser = Outline()
    parser.feed(page)
    assert parser.open == []
    return parser.counts


def report(
    directory: Path, steps: list[Mapping[str, float]], facts: Mapping[str, object] = FACTS
) -> str:
    with MetricsLog(directory) as log:
        for step, values in enumerate(steps, 1):
            log.write(step, values)
    return write_report(directory, facts).read_text(encoding="utf-8")


def test_every_curve_is_on_the_page(tmp_path):
    steps = [{n: v * step for n, v in NUMBERED.items()} for step in range(1, 4)]
    page = report(tmp_path, steps)
    for chart in CHARTS:
        assert chart.title in page
    assert outline(page)["figure"] == len(CHARTS)


WHOLE = {**NUMBERED, **TIMES, **RESHARDING}
OVERLAPPING = {"timing_s/rollout": 9.0, "timing_s/update_actor": 8.0, "timing_s/wait": 4.0}
RANKS = {"ranks": "2 on 1 node", "num_ranks": 2, "num_nodes": 1}
MANY_OPERATORS = {f"timing_s/operator_{i}": 10.0 - i for i in range(10)} | {"timing_s/step": 60.0}
PAGES = {
    "a whole run": (
        [WHOLE] * 30, FACTS, [
            "<span>rl</span><span>finished</span><span>step 30 of 30</span>",
            "training tp 4, dp 2; rollout tp 2", "1a2b3c4", "5m 00s", "10.0s a step", "90.00 GiB",
            "1.50 times the least possible", "name: demo\nrecipe: grpo",
            '<th><i class="c1"></i>rollout</th><td>6.0s</td><td>60.0%</td><td>3m 00s</td>',
            '<th><i class="c7"></i>other</th><td>1.0s</td><td>10.0%</td><td>30.0s</td>',
        ], ["http", "//", "<script", "<link", "src=", "@import", "url("],
    ),
    "seconds of ranks that overlap are no shares": (
        [OVERLAPPING | {"timing_s/step": 10.0}] * 2, FACTS, [
            "Seconds are the longest of all ranks; they overlap.",
            '<th><i class="c1"></i>rollout</th><td>9.0s</td></tr>',
        ], ["%</td>", "<th>share</th>"],
    ),
    "the headline tells first and last": (
        [{"critic/score/mean": 0.125}, {}, {"critic/score/mean": 0.75}], FACTS,
        ["<dt>Reward</dt><dd>0.75</dd><dd>from 0.125 at step 1</dd>"], [],
    ),
    "ranks and nodes are said in words": (
        [NUMBERED], RANKS, ["<dt>ranks</dt><dd>2 on 1 node</dd>"], ["num_ranks", "num_nodes"],
    ),
    "more operators than colours": (
        [MANY_OPERATORS] * 100, FACTS,
        ['<i class="c0"></i>operator_6', '<i class="c7"></i>operator_7'], [],
    ),
}  # fmt: skip
"""Steps, facts, words on the page, and words that are not there."""


@pytest.mark.parametrize("name", PAGES)
def test_words_of_a_page(tmp_path, name):
    steps, facts, words, others = PAGES[name]
    page = report(tmp_path, steps, facts)
    outline(page)
    assert [word for word in (*words, *others) if word in page] == words


def test_the_end_of_a_run_is_no_operator_of_other_ranks(tmp_path):
    with Timeline(tmp_path, 0, None) as timeline:
        for operator in ("rollout", "update_actor", "end"):
            timeline.begin(1, operator, "all")
    page = report(tmp_path, [TIMES])
    assert "<h2>Step time by operator</h2>" in page
    assert "<td>60.0%</td>" in page


def test_the_score_of_an_evaluation_is_called_so(tmp_path, capsys):
    """Some rewards give part of a point: the share that is right is another number."""
    page = report(tmp_path, [{"val/score/mean": 0.75, "val/accuracy": 0.5}])
    assert "<dt>Evaluation score</dt><dd>0.75</dd>" in page
    assert "<figcaption><span>Evaluation score</span></figcaption>" in page
    assert "<th>val score</th>" in page
    assert "ccuracy" not in page
    assert main(["report", str(tmp_path)]) == 0
    assert "evaluation score: 0.750 at step 1, 0.750 at step 1 ▁\n" in capsys.readouterr().out


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_few_steps(tmp_path, num_steps):
    page = report(tmp_path, [WHOLE] * num_steps, {})
    assert tmp_path.name in page
    assert outline(page).get("figure", 0) == (len(CHARTS) if num_steps else 0)


def test_a_run_whose_stages_have_different_metrics(tmp_path):
    sft = {"sft/loss": 2.0, "timing_s/update_actor": 1.0, "timing_s/step": 1.0}
    grpo = {"critic/score/mean": 0.5, "timing_s/rollout": 2.0, "timing_s/step": 3.0}
    page = report(tmp_path, [sft, sft, grpo])
    assert outline(page)["figure"] == 2
    assert "SFT loss" in page and "Reward" in page


def test_nulls_are_left_out_and_named(tmp_path):
    steps = [
        {"actor/grad_norm": 1.0, "critic/vf_loss": math.nan},
        {"actor/grad_norm": math.inf, "critic/vf_loss": math.nan},
    ]
    page = report(tmp_path, steps)
    assert "critic/vf_loss: nan at step 1 and 1 more" in page
    assert "actor/grad_norm: inf at step 2" in page
    assert outline(page)["figure"] == 1


@pytest.mark.parametrize(("dropped", "told"), [(0, True), (3, False)])
def test_evaluation_on_prompts_of_training_is_said_at_the_top(tmp_path, dropped, told):
    counts = {"rows": 1200, "different prompts": 1000, "prompts found in training": 2}
    counts["rows dropped from training"] = dropped
    page = report(tmp_path, [NUMBERED], {"evaluation data": counts})
    assert ("2 of its 1,000 different prompts occur in training" in page) is told
    assert "prompts found in training 2" in page


def test_what_users_wrote_is_escaped(tmp_path):
    evil = "<script>alert('$name')</script>"
    facts = dict.fromkeys(("name", "recipe", "state", "total_steps", "config", "commit"), evil)
    step = {f"timing_s/{evil.replace('/', '')}": 1.0, "timing_s/step": 1.0}
    page = report(tmp_path, [step], facts)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 7
    assert "$name" in page
