"""What follows from the sections of a run, and what it is called and lasts."""

import pytest
import yaml
from pydantic import ValidationError

from tests.unit.config.trees import parse
from verl_hpc.config.load import dump_config, load_config, parse_config
from verl_hpc.errors import ConfigError

EVALUATION = {"kind": "files", "paths": ["test.jsonl"]}


def test_a_chosen_algorithm_keeps_its_settings():
    algorithm = parse().algorithm
    assert (algorithm.advantage.name, algorithm.loss.name) == ("grpo", "ppo_clip"), "unless chosen"
    advantage = parse(algorithm__advantage={"name": "gae", "lam": 0.9}).algorithm.advantage
    assert (advantage.name, advantage.lam) == ("gae", 0.9)
    assert parse(algorithm__advantage={"std": "none"}).algorithm.advantage.std == "none"
    assert parse(algorithm__loss={"clip_high": 0.28}).algorithm.loss.clip_high == 0.28


OWN = "mine/own.py:Own"


@pytest.mark.parametrize("section", ["advantage", "loss"])
def test_an_algorithm_of_the_users_keeps_whatever_settings_it_has(section):
    config = parse(**{f"algorithm__{section}": {"name": OWN, "a": [1, {"b": None}]}})
    own = getattr(config.algorithm, section)
    assert (own.name, own.model_extra) == (OWN, {"a": [1, {"b": None}]})
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_settings_that_follow_from_others():
    filtered = parse(rollout__top_p=0.9).rollout.filters
    assert (filtered, parse().rollout.filters) == ({"top_p": 0.9}, {})
    assert parse(algorithm__correction={}).algorithm.correction.upper == 2.0
    assert parse(evaluation__at_start=True, data__evaluation=EVALUATION).evaluation.wanted
    assert not parse(data__evaluation=EVALUATION).evaluation.wanted


def test_names_are_those_of_directories():
    for name in ("a", "7b", "Qwen3-8B_run.2"):
        assert parse(name=name, directory="out").run_directory.parts == ("out", name)
    for name in ("", ".hidden", "a/b", "a b", "-x", "..", "a\n"):
        with pytest.raises(ConfigError, match="name = "):
            parse(name=name)


def test_a_run_cannot_be_changed():
    config = parse()
    with pytest.raises(ValidationError, match="frozen"):
        config.steps = 4
    with pytest.raises(ValidationError, match="frozen"):
        config.rollout.verify.probe = False


def test_a_run_lasts_steps_or_epochs(write):
    assert parse(steps=7).num_steps(100) == 7
    sizes = {"steps": None, "epochs": 3, "batch__size": 8}
    found = [parse(**sizes).num_steps(num_rows) for num_rows in (1, 8, 9, 800)]
    assert found == [1, 3, 4, 300], "3 x 9 rows are 3 batches and 3 rows more"
    path = write(run=dump_config(parse(steps=None, epochs=2)))
    assert load_config(path).epochs == 2
    again = load_config(path, ["epochs=null", "steps=5"])
    assert (again.steps, again.epochs) == (5, None)
