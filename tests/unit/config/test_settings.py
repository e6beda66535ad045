"""The settings that the program says it has are those that it reads."""

import re
from collections.abc import Mapping

import pytest
from pydantic import BaseModel

from tests.unit.config.trees import tree
from verl_hpc.cluster.site import Site
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import settings_of

SETTINGS = settings_of(RunConfig)
NAMES = {s.name: s for s in SETTINGS}


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def shown(name):
    """A setting's name in the list, where roles, labels and terms are the user's."""
    name = re.sub(r"^(roles|reward\.terms)\.\w+", r"\1.NAME", name)
    return re.sub(r"^placement\..*", "placement", name)


def test_every_setting_of_a_resolved_run_is_listed():
    gym = {"kind": "reasoning_gym", "task": "t", "size": 1}
    roles = {"critic": {"parallel": {}, "optimizer": {}, "offload": {}}}
    trackers = {"prometheus": {"port": 9400}, "mlflow": {}}
    trackers |= {name: {"project": "p"} for name in ("wandb", "swanlab")}
    full = tree(
        model__fp8={},
        model__router={"z_loss": 0.1},
        data__evaluation=gym,
        algorithm__advantage={"name": "gae"},
        algorithm__correction={"reject": {"lower": 0.5, "upper": 2.0}},
        algorithm__overlong={"buffer": 1},
        reward={"smoothing": {}, "terms": {"own": {"function": "math"}}},
        rollout={"environment": {"name": "calculator"}},
        evaluation={"every": 1},
        roles=roles,
        placement={"train": "0-3", "rollout": 4},
        metrics=trackers,
        runtime={"profile": {"steps": [1]}},
    )
    adapters = {"model": {"path": "m"}, "lora": {}, "roles": {"critic": {"lora": {}}}}
    sharded = {"parallel.fsdp", "roles.NAME.parallel.fsdp"}
    for chosen, sections in (
        (full, {"lora", "roles.NAME.lora"}),
        (full | adapters, {"model.fp8", "model.router", "roles.NAME.parallel"}),
    ):
        resolved = RunConfig.model_validate(chosen).model_dump(mode="json")
        listed = {*NAMES, *sections, *sharded, "roles.NAME.optimizer", "roles.NAME.offload"}
        listed |= {"rollout.structured", "rollout.program"}
        assert {shown(name) for name in leaves(resolved)} <= listed


ALLOWED = [
    ("recipe", "string", None),
    ("rollout.kv_cache_gib", "number > 0 <= 1000 or null", "null"),
    ("roles.NAME.head", "language_model | value | score or null", "null"),
    ("roles.NAME.optimizer.lr", "number > 0 <= 100", "1e-06"),
    ("placement", "string by name", "{}"),
    ("roles", "sections by name", "{}"),
    ("batch.size", "integer >= 1 <= 1,000,000", "128"),
    ("data.train.kind", "files | reasoning_gym | source | mix", None),
    ("rollout.stop", "array of string", "[]"),
]


@pytest.mark.parametrize(("name", "allowed", "default"), ALLOWED)
def test_what_a_setting_may_be(name, allowed, default):
    setting = NAMES[name]
    assert (setting.allowed, setting.default) == (allowed, default)


def test_settings_of_a_section_that_can_be_absent_or_one_of_several_say_when():
    assert NAMES["model.fp8.recipe"].member == "model.fp8 is given"
    assert NAMES["roles.NAME.parallel.tensor_parallel"].member == "roles.NAME.parallel is given"
    assert NAMES["roles.NAME.path"].member == ""
    assert NAMES["data.train.paths"].member == "data.train.kind is files"
    assert NAMES["optimizer.lr"].member == NAMES["data.shuffle"].member == ""


def test_defaults_are_those_of_each_member():
    members = {s.member: s.default for s in SETTINGS if s.name == "algorithm.loss.clip_high"}
    kept = {f"algorithm.loss.name is {name}": value for name, value in CLIPS.items()}
    assert kept.items() <= members.items()
    (name,) = [s for s in SETTINGS if s.name == "algorithm.advantage.name"]
    assert name.default == "grpo" and name.allowed.endswith("| path/file.py:name")


CLIPS = {"ppo_clip": "0.2", "gspo": "0.0004", "cispo": "0.28"}


def test_names_are_given_once_but_where_sections_share_one():
    shared = {s.name for s in SETTINGS if [t.name for t in SETTINGS].count(s.name) > 1}
    assert all(NAMES[name].member for name in shared)


def test_meanings_are_the_docstrings():
    class Section(BaseModel, use_attribute_docstrings=True):
        number: int = 3
        """A number of sheep,
        counted."""

    (setting,) = settings_of(Section, "farm.")
    assert (setting.name, setting.default) == ("farm.number", "3")
    assert setting.meaning == "A number of sheep, counted."


def test_every_setting_has_a_meaning_those_of_a_site_profile_as_well():
    settings = SETTINGS + settings_of(Site, "site.")
    assert len(settings) > 400
    assert [setting.name for setting in settings if not setting.meaning] == []
    names = {setting.name for setting in settings}
    assert {"site.gpus_per_node", "site.container.image", "site.restarts.most"} <= names
