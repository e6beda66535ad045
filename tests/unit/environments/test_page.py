"""docs/environments.md: its class works, its settings are settings, and it names what there is."""

import re
import select
from pathlib import Path

import pytest
import yaml

from tests.unit.config.trees import parse
from verl_hpc.config.environment import ENVIRONMENTS, EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done
from verl_hpc.environments.processes import Environments
from verl_hpc.rewards.printing import MOST_CHARACTERS

PAGE = (Path(__file__).parents[3] / "docs/environments.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def said(conversation, text):
    """The environment's answer to a turn."""
    conversation.tell([1], text)
    while True:
        ready, _, _ = select.select([conversation], [], [], 60)
        assert ready
        found = conversation.answer()
        if found is not None:
            return found


def test_the_class_of_the_page(tmp_path):
    (own,) = blocks("python")
    (tmp_path / "oracle.py").write_text(own)
    name = f"{tmp_path}/oracle.py:Oracle"
    environments = Environments(EnvironmentConfig(name=name, options={"times": 2}))
    conversation = environments.begin(Problem(0, "q", ground_truth="41"))
    assert said(conversation, "is it above 40?") == "yes"
    assert said(conversation, "is it above 50?") == "no"
    assert said(conversation, "is it above 45?") == Done()
    conversation.end()


@pytest.mark.parametrize("text", blocks("yaml"))
def test_settings_of_the_page(text):
    rollout = yaml.safe_load(text)["rollout"]
    assert parse(rollout=rollout | {"num_samples": 4}).rollout.environment is not None


def test_the_page_names_what_there_is():
    for name in ENVIRONMENTS:
        assert f"| `{name}` |" in PAGE
    assert f"{MOST_CHARACTERS:,} characters" in PAGE
