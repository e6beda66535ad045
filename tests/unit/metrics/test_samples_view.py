"""Samples on a page: all that is known of a response, and nothing that acts."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.report import write_report
from verl_hpc.metrics.samples import (
    MAX_TURNS,
    SampleGroup,
    SampleLog,
    SampleResponse,
    SampleSession,
    SampleTurn,
    read_samples,
)
from verl_hpc.metrics.samples_view import newest_samples, step_samples

TAGS = {"section", "h2", "details", "summary", "q", "small", "p", "pre", "span", "b"}
EVIL = "</pre></script><img src=x onerror='alert(1)'>\x1b[2J\x9b31m\x00\u202e\ud800 \U0001f600"


class Texts(HTMLParser):
    """The tags of a page, and what stands in each <pre>."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.said: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self._inside = tag == "pre"
        if self._inside:
            self.said.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.said[-1] += data


def group(prompt: str, *responses: SampleResponse) -> SampleGroup:
    return SampleGroup(prompt, "4", responses)


def answer(text: str = "4", score: float | None = 1.0, **fields) -> SampleResponse:
    rest = {"advantage": None, "truncated": False, "version": None} | fields
    return SampleResponse(text, score, **rest)


def test_all_that_is_known_of_a_response(tmp_path):
    log = SampleLog(tmp_path, None)
    good = answer("4", 1.0, advantage=0.70711, version=8, stop_reason="<|end|>")
    bad = answer("5 because", -0.5, advantage=-0.7, truncated=True)
    log.write(9, "train", [group("2+2=", good, bad), group("3+3=", answer("", None))])
    page = step_samples(tmp_path, 9)
    assert Texts(page).said == ["2+2=", "4", "4", "5 because", "3+3=", "4"]
    assert page.count('<p class="empty">') == 1
    assert "Training, step 9" in page and "scores 1, -0.5" in page
    first = "response 1|score 1|advantage +0.7071|weights of step 8|ended by &lt;|end|&gt;"
    second = "response 2|score -0.5|advantage -0.7|ended by the length limit"
    heads = ["prompt", "ground truth"]
    assert labels(page) == [*heads, first, second, *heads, "response 1|score -"]


def labels(page: str) -> list[str]:
    """The words above each text, with a bar where one span ends and the next begins."""
    found = re.findall(r'<p class="label">(.*?)</p>', page)
    return [re.sub("<[^>]*>", "", label.replace("</span><span>", "|")) for label in found]


def test_numbers_that_are_not_finite(tmp_path):
    log = SampleLog(tmp_path, None)
    log.write(1, "train", [group("p", answer("r", math.nan, advantage=math.inf))])
    assert "score nan</span><span>advantage +inf" in step_samples(tmp_path, 1)


def test_what_a_model_wrote_is_text(tmp_path):
    SampleLog(tmp_path, None).write(1, "train", [SampleGroup(EVIL, EVIL, [answer(EVIL)])])
    page = step_samples(tmp_path, 1)
    texts = Texts(page)
    codes = "\\x1b[2J\\x9b31m\\x00\\u202e\\ud800 \U0001f600"
    assert texts.said == ["</pre></script><img src=x onerror='alert(1)'>" + codes] * 3
    assert texts.tags <= TAGS
    assert all(c.isprintable() or c == "\n" for c in page)
    page.encode()


def test_the_newest_of_each_kind(tmp_path):
    log = SampleLog(tmp_path, None)
    assert newest_samples(tmp_path) == step_samples(tmp_path, 1) == ""
    for step in (1, 2, 3):
        log.write(step, "train", [group(f"prompt of step {step}", answer())])
    log.write(2, "evaluation", [group("held out", answer())])
    page = newest_samples(tmp_path)
    assert page.index("Training, step 3") < page.index("Evaluation, step 2")
    assert "prompt of step 3" in page and "prompt of step 2" not in page
    assert "<details" in page and " open" not in page
    log.write(4, "train", [])
    assert "Training, step 3" in newest_samples(tmp_path)


@pytest.mark.parametrize("has_samples", [True, False])
def test_a_report_shows_them(tmp_path, has_samples):
    with MetricsLog(tmp_path) as metrics:
        metrics.write(1, {"critic/score/mean": 1.0})
    if has_samples:
        SampleLog(tmp_path, None).write(1, "train", [group(EVIL, answer(EVIL))])
    page = write_report(tmp_path, {}).read_text(encoding="utf-8")
    assert ("<h2>Samples</h2>" in page) is has_samples
    assert not {"img", "script"} & Texts(page).tags


def turn(number: int, parent: int | None = None, text: str = "", **fields) -> SampleTurn:
    rest = {"before": f"said {number}", "calls": [], "reward": None, "num_tokens": 3}
    rest |= {"model_s": 0.5, "program_s": 2.0, "finish_reason": "stop"}
    return SampleTurn(number, parent, text=text or f"turn {number}", **rest | fields)


def tree(ending: str = "exited", failure: str = "", output: str = "") -> list[SampleResponse]:
    """A session of five turns: the second is continued twice, and one begins anew."""
    session = SampleSession(ending, failure, output, 5, 3, 2.5, 9.0)
    call = turn(1, 0, calls=['add({"a": 1})'], reward=-0.5)
    return [
        answer("", turns=[turn(0), call, turn(2, 1)], num_turns=3, session=session),
        answer("", turns=[turn(3, 1, EVIL, finish_reason="length")], num_turns=1, branch=1),
        answer("", turns=[turn(4)], num_turns=1, branch=2),
    ]


def test_a_session_is_a_tree_whose_turns_are_there_once(tmp_path):
    log = SampleLog(tmp_path, None)
    log.write(9, "train", [group("2+2=", *tree(), *tree("failed", "exit status 3", EVIL))])
    page = step_samples(tmp_path, 9)
    texts = Texts(page)
    assert texts.tags <= TAGS | {"code"}
    assert "<img" not in page
    for said in ("turn 0", "turn 1", "turn 2", "turn 4", "said 0", "said 3"):
        assert texts.said.count(said) == 2, said
    assert page.count('<details class="branch"') == 2 * 4
    assert page.count("reward -0.5") == 2
    assert page.count("add({&quot;a&quot;: 1})") == 2
    assert page.count("3 branches") == 2
    assert page.count("exit status 3") == 1
    assert "response 2" in page and "response 3" not in page


def test_turns_of_a_prompt_are_cut_at_a_limit_and_the_page_says_so(tmp_path):
    session = SampleSession("done", "", "", MAX_TURNS + 5, 1, 1.0, 1.0)
    turns = [turn(i, i - 1 if i else None) for i in range(MAX_TURNS + 5)]
    whole = answer("", turns=turns, num_turns=len(turns), session=session)
    SampleLog(tmp_path, None).write(1, "train", [group("q", whole)])
    (kept,) = read_samples(tmp_path, 1)["train"][0].responses
    assert len(kept.turns) == MAX_TURNS
    assert "5 turns not kept" in step_samples(tmp_path, 1)
