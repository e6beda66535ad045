"""The example of docs/evaluation.md is a configuration, and its table of public sets is whole."""

import re
from pathlib import Path

from tests.unit.config.trees import tree
from verl_hpc.config.load import parse_config
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.data.public_sets import RECIPES

PAGE = (Path(__file__).parents[3] / "docs/evaluation.md").read_text(encoding="utf-8")


def test_the_example_of_sets_is_a_configuration():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = parse_config(tree() | read_yaml(example))
    assert list(config.evaluation_sets) == ["math500", "aime24", "arithmetic"]
    assert config.evaluation_sets["math500"].chosen_temperature == 0.0
    assert config.longest_response == 8192


def test_the_short_form_is_one():
    short = PAGE.split("answered greedily:\n\n")[1].split("\n\n")[0]
    (only,) = parse_config(tree() | read_yaml(short)).evaluation_sets.values()
    assert only.max_prompts == 200


def test_every_public_set_has_its_line():
    lines = re.findall(r"^\| `(\w+)` \|.*\| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert dict(lines) == {name: recipe.data_source for name, recipe in RECIPES.items()}
