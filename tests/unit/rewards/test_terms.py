"""Format, length and multiple choice, and sums of several functions."""

import pytest

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.rewards.scoring import score_responses


def request(response="", truth=None, length=0, row=None, extra=None, index=0):
    known = {"response_ids": range(length), "columns": lambda: row or {}}
    return Request(index, "", truth, extra or {}, response, **known)


def score(function, asked, **options):
    config = RewardConfig(function=function, options=options)
    (found,) = score_responses(get_reward_function(config), [asked], config)
    return found.value


CAP = {0: 0, 60: 0, 75: 0, 85: -0.4, 100: -1, 10_000: -1}
TARGET = {100: 0, 90: -0.5, 110: -0.5, 120: -1, 0: -1, 500: -1}


def test_the_score_of_a_length():
    """A cap is DAPO's."""
    for options, expected in (({"cap": 100}, CAP), ({"target": 100, "width": 20}, TARGET)):
        scored = {n: score("length", request(length=n), **options) for n in expected}
        assert scored == pytest.approx(expected)


CHOICES = ["Paris", "Rome", "B", "New  York"]


TRUTHS = [
    (1, CHOICES, "B"),
    ("D", CHOICES, "D"),
    ("(d)", CHOICES, "D"),
    ("rome", CHOICES, "B"),
    ("new york", CHOICES, "D"),
    ("2", {"1": "x", "2": "y"}, None),
    ("E", {"A": "x", "E": "y"}, "E"),
    ("B", {"label": ["A", "B"], "text": ["x", "y"]}, "B"),
]


def test_what_a_truth_may_be_and_where_the_choices_are():
    for truth, choices, letter in TRUTHS:
        for place in ({"row": {"choices": choices}}, {"extra": {"choices": choices}}):
            asked = request(f"({letter})", truth, **place)
            assert score("multiple_choice", asked) == float(letter is not None), truth
    asked = request(r"\boxed{y}", "B", row={"options": ["x", "y"]})
    assert score("multiple_choice", asked, choices="options") == 1.0


@pytest.mark.parametrize(
    ("truth", "choices"), [(None, CHOICES), (4, CHOICES), ("Oslo", CHOICES), ("A", 3), ("A", [])]
)
def test_a_row_that_no_answer_could_be_right_for(truth, choices):
    with pytest.raises(RewardError, match="is not one of A, B, C, D|are no answers to choose from"):
        score("multiple_choice", request("A", truth, row={"choices": choices}))


def scores(requests, **settings):
    return make_scorer(RewardConfig(**settings))(requests)


TERMS = {
    "right": {"function": "gsm8k"},
    "form": {"function": "format", "weight": 0.5, "options": {"pattern": ".*####.*"}},
    "brief": {"function": "length", "weight": -2.0, "options": {"cap": 10, "buffer": 10}},
}


def test_a_score_is_the_weighted_sum_and_each_term_a_metric():
    found = scores([request("#### 72", "72", 5), request("72", "72", 10)], terms=TERMS)
    assert [s.value for s in found] == [1.0 + 0.5 + 1.0, 2.0]
    assert found[0].metrics == {
        "right": 1.0, "form": 1.0, "brief": -0.5,
        "right/failed": 0.0, "form/failed": 0.0, "brief/failed": 0.0, "right/no_answer": 0.0,
    }  # fmt: skip
    assert found[0].error is None


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "def fails(solution_str, **_):\n"
        "    if solution_str == 'bad': raise ValueError('no')\n"
        "    return {'score': 1.0, 'depth': 3}\n"
    )
    return f"{path}:fails"


def test_terms_of_any_kind_have_their_own_numbers(own):
    (found,) = scores([request("a")], terms={"own": {"function": own, "weight": 3.0}})
    assert found.value == 3.0
    assert found.metrics == {"own": 1.0, "own/depth": 3.0, "own/failed": 0.0}


def test_a_term_that_fails_does_as_it_is_told(own):
    form = {"function": "format", "options": {"pattern": "b.*"}}
    terms = {"own": {"function": own}, "form": form}
    bad = [request("bad", index=4)]
    with pytest.raises(RewardError, match=r"reward\.terms\.own\.function = .*, row 4.*ValueError"):
        scores(bad, terms=terms)
    lenient = {**terms, "own": terms["own"] | {"on_error": "zero"}}
    for settings in ({"terms": terms, "on_error": "zero"}, {"terms": lenient}):
        (combined,) = scores(bad, **settings)
        assert (combined.value, combined.metrics["own/failed"]) == (1.0, 1.0)
        assert combined.error == "own: ValueError: no"
    strict = {**terms, "own": terms["own"] | {"on_error": "stop"}}
    with pytest.raises(RewardError, match="ValueError: no"):
        scores(bad, terms=strict, on_error="zero")


def test_a_term_has_its_own_time_limit(tmp_path, no_alarm):
    path = tmp_path / "slow.py"
    path.write_text("import time\ndef nap(response, truth):\n    time.sleep(0.5)\n    return 1.0\n")
    term = {"function": f"{path}:nap", "timeout_s": 0.1, "on_error": "zero"}
    (found,) = scores([request("a")], terms={"slow": term})
    assert found.error == "slow: ran longer than timeout_s = 0.1"
