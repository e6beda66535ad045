"""Evaluation sets: what they are of, and the examples of docs/evaluation.md."""

import re
from pathlib import Path

from tests.unit.config.trees import parse, tree
from verl_hpc.config.load import dump_config, load_config, parse_config
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.data.public_sets import RECIPES

FILES = {"kind": "files", "paths": ["test.jsonl"]}
EVERY = {"evaluation__every": 1}


def sets(**changes):
    return {"evaluation__sets": {"aime24": {"source": FILES, **changes}}}


def test_one_answer_is_greedy_and_several_are_sampled_unless_a_temperature_is_given():
    config = parse(data__evaluation=FILES, evaluation={"every": 1, "max_prompts": 3})
    ((name, only),) = config.evaluation_sets.items()
    assert (name, only.num_samples, only.chosen_temperature) == ("evaluation", 1, 0.0)
    assert (only.max_prompts, only.source.paths) == (3, ["test.jsonl"])
    assert parse(**sets()).evaluation_sets["aime24"].chosen_temperature == 0.0
    assert parse(**sets(num_samples=4)).evaluation_sets["aime24"].chosen_temperature == 1.0
    given = parse(**sets(num_samples=4, temperature=0.6)).evaluation_sets["aime24"]
    assert given.chosen_temperature == 0.6


def test_sets_keep_their_order_when_they_are_written_and_read(write):
    named = {name: {"source": FILES} for name in ("math500", "aime24", "gpqa")}
    path = write(run=dump_config(parse(evaluation__sets=named, **EVERY)))
    again = load_config(path, ["evaluation.sets.aime24.num_samples=8"])
    assert list(again.evaluation_sets) == ["math500", "aime24", "gpqa"]
    assert again.evaluation_sets["aime24"].num_samples == 8


def test_what_a_run_reads_is_known_by_its_settings():
    config = parse(**sets(reward={"function": "rewards.py:score"}, max_response_tokens=900))
    assert list(config.sources) == ["data.train", "evaluation.sets.aime24.source"]
    assert config.rewards["evaluation.sets.aime24.reward"].function == "rewards.py:score"
    assert (config.longest_response, parse(**sets()).longest_response) == (900, 512)


PAGE = (Path(__file__).parents[3] / "docs/evaluation.md").read_text(encoding="utf-8")


def test_the_examples_of_sets_are_configurations():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = parse_config(tree() | read_yaml(example))
    assert list(config.evaluation_sets) == ["math500", "aime24", "arithmetic"]
    assert config.evaluation_sets["math500"].chosen_temperature == 0.0
    assert config.longest_response == 8192
    short = PAGE.split("answered greedily:\n\n")[1].split("\n\n")[0]
    (only,) = parse_config(tree() | read_yaml(short)).evaluation_sets.values()
    assert only.max_prompts == 200


def test_every_public_set_has_its_line():
    lines = re.findall(r"^\| `(\w+)` \|.*\| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert dict(lines) == {name: recipe.data_source for name, recipe in RECIPES.items()}
