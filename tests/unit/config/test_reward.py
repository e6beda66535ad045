"""The options of reward functions have meanings, and terms name functions."""

from tests.unit.config.trees import parse
from verl_hpc.config.reward import REWARD_FUNCTIONS, options_of
from verl_hpc.config.settings import settings_of


def test_every_option_says_what_it_means():
    for section in filter(None, map(options_of, REWARD_FUNCTIONS)):
        assert all(setting.meaning for setting in settings_of(section))
    assert parse(reward={"terms": {"one": {"function": "math"}}}).reward.functions == {"math"}
