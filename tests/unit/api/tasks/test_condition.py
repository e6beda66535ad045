"""Rewards in prompts."""

from verl_hpc.api.tasks.conditioned import Condition
from verl_hpc.api.tasks.settings import ConditionConfig
from verl_hpc.data.problem import Problem


def condition(tokenizer, **settings):
    return Condition(ConditionConfig(text="<{reward}>", **settings), tokenizer)


def test_levels_are_places_among_the_newest_rewards(tokenizer):
    found = condition(tokenizer, levels=4, window=8)
    assert found.asked == "<4>"
    assert found.earned([1, 2, 3, 4, 5, 6, 7, 8]) == [f"<{i}>" for i in (1, 1, 2, 2, 3, 3, 4, 4)]
    assert found.earned([9]) == ["<4>"]
    assert found.earned([2]) == ["<1>"]  # of 3 4 5 6 7 8 9 2


def test_equal_rewards_share_a_level_and_the_best_has_the_highest(tokenizer):
    found = condition(tokenizer, levels=5)
    assert found.earned([0, 0, 0]) == ["<5>"] * 3
    assert found.earned([0, 0, 0, 1]) == ["<3>"] * 3 + ["<5>"]
    assert condition(tokenizer, levels=5).earned([1] * 9 + [0]) == ["<5>"] * 9 + ["<1>"]


def test_without_levels_the_reward_is_written(tokenizer):
    found = condition(tokenizer, levels=None, target=1.5, digits=2)
    assert found.asked == "<1.50>"
    assert found.earned([0.123, -1]) == ["<0.12>", "<-1.00>"]
    assert found.state() == {}


def test_it_stands_before_the_prompt(tokenizer):
    found = condition(tokenizer)
    plain = found.prompt(Problem(0, "ab"), "<5>")
    assert plain == "<5>ab" and list(plain.ids) == tokenizer.encode("<5>ab")
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"}]
    assert "<5>ab" in found.prompt(Problem(0, chat), "<5>")
    assert chat[1]["content"] == "ab"


def test_it_goes_on_from_its_state(tokenizer):
    one, other = (condition(tokenizer, levels=3, window=4) for _ in range(2))
    one.earned([1, 2, 3, 4, 5])
    other.load_state(one.state())
    assert other.earned([3.5]) == one.earned([3.5])
