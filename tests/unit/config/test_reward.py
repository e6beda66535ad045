"""What a reward may be made of."""

import pytest

from tests.unit.config.trees import parse
from verl_hpc.config.reward import REWARD_FUNCTIONS, REWARD_OPTIONS
from verl_hpc.config.settings import settings_of
from verl_hpc.errors import ConfigError

JUDGE = {"base_url": "http://node17:8000/v1", "model": "m", "prompt": "Judge {response}"}


def test_every_option_says_what_it_means():
    assert set(REWARD_OPTIONS) <= set(REWARD_FUNCTIONS)
    for section in REWARD_OPTIONS.values():
        assert all(setting.meaning for setting in settings_of(section))


WRONG_OPTIONS = [
    ("judge", JUDGE | {"base_url": "node17:8000"}, "base_url = 'node17:8000': no address"),
    ("judge", JUDGE | {"prompt": "Judge it"}, r"prompt = 'Judge it': .*response"),
    ("judge", JUDGE | {"pattern": "("}, "no regular expression"),
    ("judge", JUDGE | {"pattern": "x"}, r"needs a group, in \( \), around the score"),
    ("judge", JUDGE | {"minimum": 1.0}, "minimum = 1 is not below maximum = 1"),
    ("judge", JUDGE | {"variable": "sk-hunter2"}, "variable"),
    ("judge", JUDGE | {"modell": "m"}, "modell: no such setting; did you mean model"),
    ("judge", {}, "base_url: is needed and not given"),
    ("code", {"memory_mib": 1}, "memory_mib = 1"),
    ("code", {"score": "some"}, "score = 'some'"),
    ("format", {}, "give a pattern, or tags, and not both"),
    ("format", {"pattern": "a", "tags": ["b"]}, "give a pattern, or tags, and not both"),
    ("format", {"tags": ["a b"]}, "tags.0 = 'a b'"),
    ("length", {}, "give cap, or target, and not both"),
    ("length", {"cap": 10, "width": 1}, "width belongs to target"),
    ("length", {"target": 10, "buffer": 1}, "buffer belongs to cap"),
    ("length", {"cap": 10, "buffer": 11}, "buffer = 11 is more than cap = 10"),
    ("length", {"target": 0}, "target = 0 needs a width"),
    ("multiple_choice", {"choice": "x"}, "choice: no such setting; did you mean choices"),
]


@pytest.mark.parametrize(("function", "options", "words"), WRONG_OPTIONS)
def test_options_are_checked_before_a_job_is_submitted(function, options, words):
    with pytest.raises(ConfigError, match=f"options of {function}: .*{words}"):
        parse(reward={"function": function, "options": options})
    with pytest.raises(ConfigError, match=rf"reward\.terms\.one: options of {function}: .*{words}"):
        parse(reward={"terms": {"one": {"function": function, "options": options}}})


def test_terms_and_a_function_exclude_each_other():
    terms = {"one": {"function": "math"}}
    with pytest.raises(ConfigError, match="terms and function exclude each other"):
        parse(reward={"function": "math", "terms": terms})
    with pytest.raises(ConfigError, match="terms and options exclude each other"):
        parse(reward={"options": {"a": 1}, "terms": terms})
    assert parse(reward={"terms": terms}).reward.functions == {"math"}


def test_a_term_needs_a_function_and_a_name_that_a_metric_can_have():
    with pytest.raises(ConfigError, match=r"reward\.terms\.one\.function: is needed"):
        parse(reward={"terms": {"one": {"weight": 1.0}}})
    with pytest.raises(ConfigError, match="reward.terms"):
        parse(reward={"terms": {"one/two": {"function": "math"}}})
    with pytest.raises(ConfigError, match="no such function; did you mean gsm8k"):
        parse(reward={"terms": {"one": {"function": "gsm8"}}})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parameters": {"api_key": "hunter2"}}, "api_key looks like a secret"),
        ({"variable": "sk-hunter2"}, "variable"),
    ],
)
def test_a_secret_in_the_options_of_a_term_is_refused_and_not_repeated(options, words):
    """Also the key itself in the place of its variable's name."""
    judge = {"function": "judge", "options": JUDGE | options}
    for reward in ({"terms": {"judge": judge}}, judge):
        with pytest.raises(ConfigError, match=words) as caught:
            parse(reward=reward)
        assert "hunter2" not in str(caught.value)
