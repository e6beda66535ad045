"""docs/environments.md: its class works, its settings are settings, and it names what there is."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.config.trees import parse
from tests.unit.environments.talking import begun, said
from verl_hpc.config.environment import ENVIRONMENTS, EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.sources import open_source
from verl_hpc.environments.environment import Done
from verl_hpc.environments.processes import Environments
from verl_hpc.rewards.functions.reasoning_gym import PREFIX
from verl_hpc.rewards.guard import MOST_CHARACTERS

PAGE = (Path(__file__).parents[3] / "docs/environments.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_class_of_the_page(tmp_path):
    (own,) = blocks("python")
    (tmp_path / "oracle.py").write_text(own)
    name = f"{tmp_path}/oracle.py:Oracle"
    environments = Environments(EnvironmentConfig(name=name, options={"times": 2}))
    with begun(environments, Problem(0, "q", ground_truth="41")) as conversation:
        assert said(conversation, "is it above 40?") == "yes"
        assert said(conversation, "is it above 50?") == "no"
        assert said(conversation, "is it above 45?") == Done()


@pytest.mark.parametrize("text", blocks("yaml"))
def test_settings_of_the_page(text):
    given = yaml.safe_load(text)
    run = parse(**given | {"rollout": given["rollout"] | {"num_samples": 4}})
    environment = run.rollout.environment
    assert environment is not None
    if environment.name in ENVIRONMENTS:
        Environments(environment).check()
    if environment.name == "reasoning_gym":
        assert open_source(run.data.train)[0].data_source.startswith(PREFIX)


def test_the_page_shows_each_in_settings():
    shown = {yaml.safe_load(text)["rollout"]["environment"]["name"] for text in blocks("yaml")}
    assert shown >= set(ENVIRONMENTS)


def test_the_page_names_what_there_is():
    for name in ENVIRONMENTS:
        assert f"| `{name}` |" in PAGE
    assert f"{MOST_CHARACTERS:,} characters" in PAGE
