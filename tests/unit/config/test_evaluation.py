"""Evaluation sets: what they may be, and what may not stand together."""

import re

import pytest

from tests.unit.config.trees import parse
from verl_hpc.config.load import dump_config, load_config
from verl_hpc.errors import ConfigError

FILES = {"kind": "files", "paths": ["test.jsonl"]}
EVERY = {"evaluation__every": 1}


def sets(**changes):
    return {"evaluation__sets": {"aime24": {"source": FILES, **changes}}}


WHOLE = {"recipe": "reward_model", "rollout": {"engine": "none"}}
REWARD_MODEL = WHOLE | {"roles": {"reward": {}}}
SAVES = {"evaluation": {"every": 1, "save_generations": True}, "data__evaluation": FILES}
SECRET = {"function": "math", "options": {"api_key": "x"}}
UNKNOWN = sets(reward={"function": "mth"})
OF_SET = "evaluation.sets.aime24"
REFUSED = [
    (
        "data.evaluation and evaluation.sets (aime24) are both given",
        {"data__evaluation": FILES, **sets()},
    ),
    ("make data.evaluation", {"data__evaluation": FILES, **sets()}),
    ("max_prompts = 5 is of data.evaluation", {"evaluation__max_prompts": 5, **sets()}),
    ("num_samples = 4 with temperature = 0", sets(num_samples=4, temperature=0.0)),
    ("top_p = 0.9 with temperature = 0", sets(top_p=0.9)),
    (f"{OF_SET}.temperature = 3: vLLM samples up to 2", sets(temperature=3.0)),
    (f"{OF_SET}.num_samples = 0", sets(num_samples=0)),
    (f"{OF_SET}.num_samples = 10001", sets(num_samples=10_001)),
    (f"{OF_SET}.temperature = 0.001: must be 0", sets(temperature=0.001)),
    (f"{OF_SET}.samples: no such setting; did you mean num_samples", sets(samples=3)),
    (f"{OF_SET}.source: is needed and not given", {"evaluation__sets": {"aime24": {}}}),
    ("evaluation.sets.a/b: as a name", {"evaluation__sets": {"a/b": {"source": FILES}}}),
    ("evaluation.every > 0 needs data.evaluation, or evaluation.sets", EVERY),
    ("save_generations needs every > 0 or at_start", {"evaluation__save_generations": True}),
    ("evaluation.save_generations with recipe: reward_model", WHOLE | SAVES),
    ("evaluation.sets (aime24) with recipe: reward_model", REWARD_MODEL | sets()),
    (f"{OF_SET}.reward.options.api_key looks like a secret", sets(reward=SECRET)),
    ("reward.function = 'mth': no such function; did you mean math", UNKNOWN),
]


@pytest.mark.parametrize(("words", "changes"), REFUSED)
def test_what_is_refused(words, changes):
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse(**changes)


def test_data_evaluation_is_one_set_of_greedy_answers():
    config = parse(data__evaluation=FILES, evaluation={"every": 1, "max_prompts": 3})
    ((name, only),) = config.evaluation_sets.items()
    assert (name, only.num_samples, only.chosen_temperature) == ("evaluation", 1, 0.0)
    assert (only.max_prompts, only.source.paths) == (3, ["test.jsonl"])


def test_several_answers_are_sampled_unless_a_temperature_is_given():
    assert parse(**sets()).evaluation_sets["aime24"].chosen_temperature == 0.0
    assert parse(**sets(num_samples=4)).evaluation_sets["aime24"].chosen_temperature == 1.0
    given = parse(**sets(num_samples=4, temperature=0.6)).evaluation_sets["aime24"]
    assert given.chosen_temperature == 0.6


def test_sets_keep_their_order_when_they_are_written_and_read(tmp_path):
    named = {name: {"source": FILES} for name in ("math500", "aime24", "gpqa")}
    config = parse(evaluation__sets=named, **EVERY)
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(config))
    again = load_config(path, ["evaluation.sets.aime24.num_samples=8"])
    assert list(again.evaluation_sets) == ["math500", "aime24", "gpqa"]
    assert again.evaluation_sets["aime24"].num_samples == 8


def test_what_a_run_reads_is_known_by_its_settings():
    config = parse(**sets(reward={"function": "rewards.py:score"}, max_response_tokens=900))
    assert list(config.sources) == ["data.train", "evaluation.sets.aime24.source"]
    assert config.rewards["evaluation.sets.aime24.reward"].function == "rewards.py:score"
    assert (config.longest_response, parse(**sets()).longest_response) == (900, 512)
