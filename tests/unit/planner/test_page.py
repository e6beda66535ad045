"""The examples of docs/placements.md can be laid out."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.config.trees import SMALLEST
from verl_hpc.config.load import parse_config
from verl_hpc.placement.layouts import place_roles

PAGE = Path(__file__).parents[3] / "docs" / "placements.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_of_the_page_is_laid_out(text):
    assert len(EXAMPLES) == 4
    changes = yaml.safe_load(text)
    num_ranks = 128 if "nodes" in text else 12 if "8-11" in text else 4
    algorithm = {"advantage": {"name": "gae" if "critic" in text else "grpo"}}
    rollout = SMALLEST["rollout"] | changes.pop("rollout", {})
    config = parse_config(SMALLEST | changes | {"algorithm": algorithm, "rollout": rollout})
    layouts = place_roles(config, num_ranks, ranks_per_node=8)
    assert layouts.is_split
    assert {label for label in changes["placement"] if label != "train"} <= set(layouts.pool_of)
