"""What docs/rewards.md shows works, and what there is is on it or on the page of the rules."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.config.trees import parse
from verl_hpc.config.reward import REWARD_FUNCTIONS, RewardConfig, options_of
from verl_hpc.rewards.functions.code import VERDICTS
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import MORE_KEYWORDS, Request
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.rewards.scoring import Score, score_responses

PAGE, RULES = (
    (Path(__file__).parents[3] / "docs" / name).read_text(encoding="utf-8")
    for name in ("rewards.md", "reward_functions.md")
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


FULL, COLUMNS, BATCHED, LISTED, SANDBOXED = blocks("python")
KNOWN = Request(
    0, "x", "7", {}, "7", response_ids=[1, 2, 3], columns=lambda: {"level": 1}, truncated=False
)


def scores(tmp_path, text, name, *requests, **options):
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    config = RewardConfig(function=f"{tmp_path}/own.py:{name}", options=options)
    return score_responses(get_reward_function(config), requests, config)


def test_a_list_has_a_number_for_each_turn(tmp_path):
    said = ["<calc>8*9</calc>", "72", "It is 72"]
    roles = ("assistant", "environment", "assistant")
    turns = [
        {"role": role, "content": text, "token_ids": [i, i]}
        for i, (role, text) in enumerate(zip(roles, said, strict=True))
    ]
    asked = Request(0, "x", "7", {}, said[-1], response_ids=[0, 0, 1, 1, 2, 2], turns=turns)
    (found,) = scores(tmp_path, LISTED, "calls", asked)
    assert found == Score(1.5, per_token=[0.0, 0.5, 0.0, 0.0, 0.0, 1.0])


def test_the_function_of_the_page(tmp_path):
    assert scores(tmp_path, FULL, "score", KNOWN) == [Score(1.0, {"brief": 1.0})]
    assert all(f"`{name}`" in PAGE for name in MORE_KEYWORDS)


def test_the_functions_of_a_list(tmp_path):
    assert scores(tmp_path, COLUMNS, "score", KNOWN, KNOWN) == [Score(1.0)] * 2
    (tmp_path / "requests").mkdir()
    tmp_path /= "requests"
    assert scores(tmp_path, BATCHED, "lengths", KNOWN, KNOWN, unit=2) == [Score(1.5)] * 2


def test_the_function_with_a_sandbox(tmp_path):
    asked = Request(0, "", "6", {}, "print(2 * int(input()))")
    assert scores(tmp_path, SANDBOXED, "score", asked, KNOWN) == [Score(1.0), Score(0.0)]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_the_settings_of_the_page(text):
    config = parse(**yaml.safe_load(text)).reward
    make_scorer(config)
    assert config.terms or config.smoothing


def test_every_function_option_and_verdict_is_on_the_page():
    assert all(f"| `{name}` |" in PAGE for name in REWARD_FUNCTIONS)
    assert all(f"`code_{verdict}`" in RULES.replace("reward/", "") for verdict in VERDICTS)
    assert all(f"`{name}`" in RULES for name in options_of("code").model_fields)
