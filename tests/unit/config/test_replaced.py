"""A variant that is chosen anew takes nothing of the one before."""

import logging
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tests.unit.config.trees import tree
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.site import Site
from verl_hpc.config.load import load_config
from verl_hpc.config.replaced import drop_replaced
from verl_hpc.config.run import RunConfig
from verl_hpc.config.settings import settings_of
from verl_hpc.config.tree import parse_override, put
from verl_hpc.errors import ConfigError


def at(config, name):
    for part in name.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


CLIPS = {"clip_high": 0.28, "clip_low": 0.1}
GYM = {"kind": "reasoning_gym", "task": "chain_sum", "size": 9, "options": {"min_terms": 2}}
SETS = {"a": {"source": GYM}}
RATIO = {"ratio": "product", "lower": 0.5, "upper": 2.0}
PREFIXES = {"engine_options": {"enable_prefix_caching": False}}
GAE = {"name": "gae", "gamma": 0.9}
FOUR, GSPO, HIGH = {"num_samples": 4}, {"name": "gspo"}, ".clip_high=0.01"
FSDP = {"engine": "fsdp", "fsdp": {"shard_size": 2}}
DPPO = {"name": "dppo", "divergence": "kl", "threshold": 0.01}
KL = {"placement": "reward", "controller": "adaptive", "target": 7.0, "horizon": 9}

SEQUENCE = {"t": {"function": "a.py:f", "options": {"x": 1}, "weight": 3.0}}
PYTHON = {"name": "python", "options": {"seconds": 1}, "max_turns": 3}
BASELINE, TOKEN = "optimal_token_baseline", {"weights": "token", "upper": 5.0}
COSINE = {"schedule": "cosine", "min_lr": 1e-7, "decay_steps": 9, "lr": 1e-5}
OTHER_RATIO = [".reject.ratio=geometric_mean", ".reject.upper=1.01", ".reject.lower=0.9"]
CASES = [
    # A section, what a file says of it, overrides of it, and what its settings are then.
    ("algorithm.loss", CLIPS, [".name=gspo"], {"clip_high": 4e-4}),
    ("algorithm.loss", CLIPS, [".name=gmpo"], {"clip_high": 0.4}),
    ("algorithm.loss", CLIPS, ["={name: gspo}"], {"clip_high": 4e-4}),
    (
        "algorithm",
        {"loss": {"name": "gspo", "clip_low": 1e-3}},
        [".loss={clip_high: 2e-3}", "={aggregation: token-mean}"],
        {"loss.name": "gspo", "loss.clip_low": 1e-3},
    ),
    ("algorithm.loss", CLIPS, [".name=gspo", "={clip_high: 2e-3}"], GSPO | {"clip_high": 2e-3}),
    ("algorithm.loss", CLIPS, [".name=gspo", "={}"], {"name": "ppo_clip", "clip_high": 0.2}),
    ("algorithm.loss", CLIPS, [".name=ppo_clip"], {"clip_high": 0.28}),
    ("algorithm.loss", CLIPS, [HIGH, ".name=gspo"], {"clip_high": 0.01, "clip_low": 3e-4}),
    ("algorithm.loss", CLIPS, [".name=gspo", ".name=ppo_clip"], {"clip_high": 0.28}),
    ("algorithm.advantage", GAE, [f".name={BASELINE}"], {"name": BASELINE}),
    ("algorithm.preference", {"name": "ipo", "beta": 0.7}, [".name=dpo"], {"beta": 0.1}),
    ("data.train", GYM, [".kind=files", ".paths=[a.jsonl]"], {"paths": ["a.jsonl"]}),
    ("data.train", GYM, [".task=gcd"], {"options": {}}),
    ("evaluation.sets", SETS, [".a.source.task=gcd"], {"a.source.options": {}}),
    ("reward", {"function": "a.py:f", "options": {"x": 1}}, [".function=b.py:f"], {"options": {}}),
    ("reward.terms", SEQUENCE, [".t.function=math"], {"t.options": {}, "t.weight": 3.0}),
    ("rollout.environment", PYTHON, [".name=calculator"], {"options": {}, "max_turns": 3}),
    ("rollout", FOUR | PREFIXES, [".engine=hf"], FOUR | {"engine_options": {}}),
    ("parallel", FSDP, [".engine=megatron", ".tensor_parallel=2"], {"fsdp": None}),
    ("algorithm.kl", KL, [".controller=fixed"], {"target": 0.1, "placement": "reward"}),
    ("algorithm.loss", DPPO, [".divergence=tv"], {"threshold": None}),
    ("optimizer", COSINE, [".schedule=constant"], {"min_lr": 0.0, "decay_steps": None, "lr": 1e-5}),
    ("algorithm.correction", TOKEN, [".weights=sequence"], {"upper": 2.0}),
    ("algorithm.correction", {"reject": RATIO}, OTHER_RATIO, {"reject.upper": 1.01}),
]


FIRST = {"name": "ppo_clip", "clip_high": 0.2}
ANOTHER = [".function=a.py:f", ".options={k: 1}", ".function=b.py:g"]
TWICE = [
    ("algorithm.loss", [".name=gspo", ".clip_high=0.1", ".name=ppo_clip"], FIRST),
    ("algorithm.loss", ["={name: gspo, clip_high: 0.1}", ".name=ppo_clip"], FIRST),
    ("algorithm.loss", [HIGH, ".name=gspo", ".name=gspo"], GSPO | {"clip_high": 0.01}),
    ("reward", ANOTHER, {"function": "b.py:g", "options": {}}),
]


@pytest.mark.parametrize(("section", "words", "expected"), TWICE)
def test_a_variant_that_is_named_twice_has_nothing_of_the_first(write, section, words, expected):
    config = load_config(write(run=tree()), [section + word for word in words])
    assert {name: at(config, f"{section}.{name}") for name in expected} == expected


def nested(words):
    """What a file says that includes another, instead of overrides."""
    found = {}
    for word in words:
        put(found, *parse_override(word))
    return found


def test_nothing_of_a_variant_stays_where_another_is_named(write):
    for section, before, words, expected in CASES:
        path = write(run=tree(**{section.replace(".", "__"): before}))
        overrides = [section + word for word in words]
        includes = write(top={"include": ["run.yaml"], **nested(overrides)})
        for config in (load_config(path, overrides), load_config(includes)):
            after = {name: at(config, f"{section}.{name}") for name in expected}
            assert after == expected, overrides


def test_bounds_that_must_be_given_are_asked_for_anew(write):
    path = write(run=tree(algorithm__correction={"reject": RATIO}))
    with pytest.raises(ConfigError, match=r"reject.upper: is needed and not given"):
        load_config(path, ["algorithm.correction.reject.ratio=geometric_mean"])


def test_a_line_says_what_was_dropped(write, caplog):
    path = write(run=tree(algorithm__loss=CLIPS))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_config(path, ["algorithm.loss.name=gspo"])
    (line,) = caplog.messages
    assert line == (
        f"{path}: algorithm.loss.name = 'gspo' replaces 'ppo_clip'; dropped with it: "
        "algorithm.loss.clip_high, algorithm.loss.clip_low"
    )


def test_a_site_profile_has_variants_too(write):
    pyxis = {"kind": "pyxis", "image": "a.sqsh", "mounts": ["/scratch"]}
    path = write(site={"name": "s", "gpus_per_node": 1, "cores_per_node": 8, "container": pyxis})
    profile = load_profile(path, [("container.kind", "apptainer"), ("container.image", "a.sif")])
    assert profile.site.container.mounts == []


def test_what_is_not_a_section_is_left_to_the_check(write):
    path = write(run=tree(algorithm=3, roles={"a.b": {}}))
    with pytest.raises(ConfigError, match="algorithm is a value, not a section"):
        load_config(path, ["algorithm.loss.name=gspo", "roles={a.b: {head: value}}"])


def variants(model: type[BaseModel]):
    """Every setting that a section's name decides upon, by its chooser, as the listing has it."""
    for setting in settings_of(model):
        owner, _, value = setting.member.partition(" is ")
        if value and value != "given" and "NAME" not in setting.name:
            yield owner, value, setting.name


@pytest.mark.parametrize("model", [RunConfig, Site])
def test_every_section_of_several_is_covered(model):
    """No setting of a variant is left when another is named."""
    seen = 0
    for owner, value, name in variants(model):
        below = nested([f"{owner}={value}", f"{name}=1"])
        assert drop_replaced(below, nested([f"{owner}=another"]), model, f"test {value}") == [name]
        seen += 1
    assert seen > 10


@pytest.mark.parametrize("path", sorted(Path("configs/run").rglob("*.yaml")), ids=lambda p: p.stem)
def test_a_shipped_file_names_the_variant_whose_settings_it_gives(path):
    """So that it can be included over a file that names another one."""
    given = yaml.safe_load(path.read_text())

    def has(name):
        node = given
        for part in name.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node is not None

    assert not [name for owner, _, name in variants(RunConfig) if has(name) and not has(owner)]
