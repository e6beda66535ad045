"""Steps of the timeline that are shown, and the links to others."""

import itertools
import re

import pytest

from verl_hpc.cli.dashboard.parts import parse_steps, timeline_part
from verl_hpc.metrics.timeline import Timeline

ADDRESSES = {"7": (7, 7), "7-9": (7, 9), "0-0": (0, 0), "7-1000000": (7, 26)}
NO_STEPS = ("9-7", "", "-3", "7-", "a", "7-9-11", "9" * 13, "<b>", "\u0667\n")


def test_steps_of_an_address():
    shown = {asked: parse_steps(asked) for asked in (*ADDRESSES, *NO_STEPS)}
    ends = {asked: steps and (steps[0], steps[-1]) for asked, steps in shown.items()}
    assert ends == ADDRESSES | dict.fromkeys(NO_STEPS)


@pytest.fixture
def run(tmp_path):
    seconds = itertools.count(1000.0)
    with Timeline(tmp_path, 0, None, lambda: next(seconds)) as timeline:
        for step in range(1, 41):
            timeline.begin(step, "rollout", "all")
    return tmp_path


def links(page):
    return {words: asked for asked, words in re.findall(r'steps=([\d-]+)#timeline">(\w+)<', page)}


def test_the_newest_and_the_way_back(run):
    page = timeline_part(run, "a&b", "", {})
    assert "<b>steps 38-40</b> of 1-40" in page
    assert links(page) == {"earlier": "35-37", "1": "40-40", "10": "31-40", "20": "21-40"}
    assert 'href="/run?name=a%26b&amp;steps=35-37#timeline"' in page
    assert page.count("<rect") == 3


def test_in_the_middle(run):
    page = timeline_part(run, "a", "5-14", {})
    assert links(page) == {
        "earlier": "1-10", "later": "15-24", "1": "14-14", "3": "12-14", "20": "1-14"
    }  # fmt: skip
    assert '<a href="/run?name=a#timeline">newest</a>' in page
    assert page.count("<rect") == 10


def test_at_the_oldest_and_beyond_the_newest(run):
    assert timeline_part(run / "none", "a", "", {}) == ""
    assert "earlier" not in timeline_part(run, "a", "1", {})
    page = timeline_part(run, "a", "90-92", {})
    assert "No rank has a line of these steps." in page
    assert "later" not in page and "newest" in page
