"""What a distillation is made of, and what cannot be meant."""

import pytest
import yaml

from tests.unit.config.trees import parse
from verl_hpc.config.load import dump_config, parse_config
from verl_hpc.errors import ConfigError

TEACHER = {"recipe": "distillation", "roles": {"teacher": {"path": "models/teacher"}}}
FORWARD = {"name": "forward_kl", "top_k": 8}
EARNS = {"name": "reverse_kl", "task_reward_weight": 0.5}


def test_the_reverse_kl_is_followed_if_nothing_is_said():
    config = parse(**TEACHER)
    assert config.method == "distillation (reverse_kl)"
    assert [*config.role_settings] == ["actor", "teacher"]
    assert not config.role_settings["teacher"].trainable
    assert not config.calls_reward and config.generates
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_a_task_reward_is_scored_by_its_function_or_by_a_model():
    assert parse(**TEACHER, distillation=EARNS).calls_reward
    roles = TEACHER["roles"] | {"reward": {"path": "models/judge"}}
    config = parse(recipe="distillation", roles=roles, distillation=EARNS)
    assert [*config.role_settings] == ["actor", "teacher", "reward"]
    assert not config.calls_reward


def test_one_response_to_a_prompt_is_enough_for_a_teacher():
    parse(**TEACHER, rollout__num_samples=1)
    with pytest.raises(ConfigError, match="rollout.num_samples = 1: .* at least 2"):
        parse(**TEACHER, rollout__num_samples=1, distillation=EARNS)


def test_a_teacher_may_be_what_the_others_share():
    parse(recipe="distillation", roles={"actor": {"path": "models/small"}, "teacher": {}})


MEANINGLESS = [
    ({"roles": {}}, r"roles.teacher is not given, .*give `roles: \{teacher: \{path: ...\}\}`"),
    ({"roles": {"teacher": {}}}, "roles.teacher.path = models/tiny: .*the actor starts from"),
    ({"roles": {"teacher": {"path": "t", "head": "score"}}}, "needs language_model"),
    ({"roles": {"teacher": {"path": "t", "trainable": True}}}, "does not train this role"),
    (
        {"roles": {"teacher": {"path": "t"}, "reward": {"path": "r"}}},
        "roles.reward: no operator of recipe distillation uses this role",
    ),
    (
        {"algorithm": {"kl": {"placement": "loss"}}},
        "algorithm.kl.placement = loss: the teacher is the reference .*choose none",
    ),
    ({"distillation": {"name": "kl"}}, "distillation.name = 'kl': must be one of reverse_kl"),
    ({"distillation": {"name": "reverse_kl", "top_k": 4}}, "top_k: no such setting"),
    ({"distillation": {"name": "forward_kl", "top_k": 0}}, "distillation.top_k = 0"),
    (
        {"distillation": EARNS | {"task_reward_weight": -1.0}},
        "distillation.task_reward_weight = -1",
    ),
    (
        {"distillation": EARNS, "algorithm": {"advantage": {"name": "gae"}}},
        "algorithm.advantage.name = gae: needs values, .* such as grpo",
    ),
    (
        {"algorithm": {"advantage": {"name": "rloo"}}},
        "algorithm.advantage: has no effect .*reverse_kl and .*weight = 0; leave it out",
    ),
    (
        {"distillation": FORWARD, "algorithm": {"loss": {"name": "gspo"}}},
        "algorithm.loss: has no effect with distillation.name = forward_kl",
    ),
    (
        {"distillation": FORWARD, "algorithm": {"old_log_probs": "rollout"}},
        "algorithm.old_log_probs: has no effect",
    ),
    (
        {"distillation": FORWARD, "algorithm": {"correction": {}}},
        "algorithm.correction: has no effect",
    ),
    (
        {"algorithm": {"overlong": {"buffer": 4}}},
        "algorithm.overlong.buffer = 4: is a penalty on the score, and nothing is scored",
    ),
    ({"rollout__engine": "none"}, "rollout.engine = none, and recipe: distillation generates"),
    ({"rollout__temperature": 0}, "rollout.temperature = 0"),
    ({"recipe": "rl", "roles": {}, "distillation": FORWARD}, "with recipe: rl, which follows"),
]


@pytest.mark.parametrize(("changes", "words"), MEANINGLESS)
def test_what_cannot_be_meant(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(**TEACHER | changes)


def test_a_loss_goes_with_the_reverse_kl():
    parse(**TEACHER, algorithm={"loss": {"name": "gspo"}, "correction": {}})
    earns = FORWARD | {"task_reward_weight": 1.0}
    algorithm = {"loss": {"name": "gspo"}, "advantage": {"name": "rloo"}}
    parse(**TEACHER, distillation=earns, algorithm=algorithm)
