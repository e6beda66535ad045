"""YAML files, includes and overrides; what a typo or a broken file is answered with."""

import math
import os
import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.config.trees import SMALLEST, parse, tree
from verl_hpc.config.load import dump_config, load_config, parse_config
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError


def refusal(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_a_file_and_the_defaults(write):
    config = load_config(write(run=SMALLEST))
    assert (config.name, config.recipe, config.steps) == ("run", "rl", 3)
    assert (config.rollout.num_samples, config.batch.size) == (4, 128)
    assert str(config.run_directory) == "runs/run"


# Overrides


def test_overrides_set_what_they_name_and_nothing_else(write):
    path = write(run=tree(optimizer__lr=0.5, optimizer__clip_grad=2.0))
    config = load_config(path, ["optimizer.lr=1e-3", "batch.size=9", "batch.size=8", "name=other"])
    assert (config.optimizer.lr, config.optimizer.clip_grad) == (1e-3, 2.0)
    assert (config.batch.size, config.name, config.steps) == (8, "other", 3)


def test_a_value_in_the_place_of_a_section_is_answered_with_an_example(write):
    path = write(run=SMALLEST)
    for name, value, shown in (
        ("data.train", "a.jsonl", "{kind: files, paths: [a.jsonl]}"),
        ("data.train", "reasoning_gym", "{kind: reasoning_gym, task: ..., size: ...}"),
        ("data.train", 3, "{kind: files, paths: [...]}"),
        ("algorithm.loss", "gspo", "{name: gspo}"),
        ("algorithm.advantage", "a.py:Mine", "{name: a.py:Mine}"),
        ("distillation", "forward_kl", "{name: forward_kl}"),
        ("reward", "math", "{function: math}"),
        ("rollout.environment", "calculator", "{name: calculator}"),
        ("evaluation.sets.a", "b.jsonl", "{source: b.jsonl}"),
        ("roles.critic.parallel", "fsdp", "{engine: fsdp}"),
    ):
        says = f"{name} = {value!r}: expected a section, such as {shown}"
        assert says in refusal(path, f"{name}={value}").splitlines()[1]


def test_alternatives_to_a_section_are_not_in_its_name(write):
    path = write(run=tree(algorithm__advantage={"name": "gae"}))
    lines = refusal(path, "roles.critic.lora={rnk: 3}").splitlines()
    assert lines[1:] == ["  roles.critic.lora.rnk: no such setting; did you mean rank?"]
    lines = refusal(path, "roles.critic.lora=on").splitlines()
    assert lines[1:] == [
        "  roles.critic.lora = 'on': expected a section, such as {rank: ...}",
        "  roles.critic.lora = 'on': Input should be 'none'",
    ]


OVERRIDES = [
    ("optimizer.lr=1e-6", "optimizer", "lr", 1e-6),
    ("optimizer.lr=1.5e-6", "optimizer", "lr", 1.5e-6),
    ("optimizer.lr=2", "optimizer", "lr", 2.0),
    ("algorithm.entropy_coefficient=0.1", "algorithm", "entropy_coefficient", 0.1),
    ("rollout.stop=[a, 'b=c']", "rollout", "stop", ["a", "b=c"]),
    ("reward.options={scale: 2}", "reward", "options", {"scale": 2}),
    ("data.shuffle=false", "data", "shuffle", False),
    ("model.path=/a/b=c", "model", "path", "/a/b=c"),
    ("parallel.recompute=none", "parallel", "recompute", "none"),
]


@pytest.mark.parametrize("word, section, field, value", OVERRIDES)
def test_values_of_overrides_are_yaml(write, word, section, field, value):
    found = getattr(getattr(load_config(write(run=SMALLEST), [word]), section), field)
    assert found == value
    assert type(found) is type(value)


WRONG_OVERRIDES = {
    "steps": "override 'steps': expected section.field=value",
    "": "override '': expected section.field=value",
    "optimizer.lr 1": "override 'optimizer.lr 1': expected section.field=value",
    "steps=[1": "override 'steps=[1': the value is not valid YAML: while parsing a flow sequence",
    "steps.count=1": "override steps.count: steps is a value, not a section",
}


@pytest.mark.parametrize(("word", "message"), WRONG_OVERRIDES.items())
def test_an_override_that_says_nothing(write, word, message):
    assert refusal(write(run=SMALLEST), word) == message


# Includes


def test_later_includes_win_over_earlier_and_the_file_over_all(write):
    path = write(
        run={"include": ["first.yaml", "second.yaml"], **SMALLEST, "seed": 3},
        first={"seed": 1, "batch": {"size": 16, "mini_batches": 4}, "directory": "first"},
        second={"seed": 2, "batch": {"size": 32}},
    )
    config = load_config(path, ["batch.update_epochs=5"])
    assert config.seed == 3
    assert (config.batch.size, config.batch.mini_batches, config.batch.update_epochs) == (32, 4, 5)
    assert config.directory == "first"


def test_lists_are_replaced_and_values_take_the_place_of_sections(write):
    path = write(
        run={"include": ["base.yaml"], "a": [3], "b": 1, "c": {"x": 2}},
        base={"a": [1, 2], "b": {"x": 1}, "c": 5},
    )
    assert read_tree(path) == {"a": [3], "b": 1, "c": {"x": 2}}


def test_includes_are_relative_to_the_file_that_names_them(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "run.yaml").write_text("include: [models/big.yaml]\na: 1\n")
    (tmp_path / "models" / "big.yaml").write_text("include: [sizes.yaml]\nb: 2\n")
    (tmp_path / "models" / "sizes.yaml").write_text("include:\na: 0\nc: 3\n")
    assert read_tree(tmp_path / "run.yaml") == {"a": 1, "b": 2, "c": 3}


def test_two_includes_may_share_a_third(write):
    path = write(
        run={"include": ["left.yaml", "right.yaml"]},
        left={"include": ["base.yaml"], "x": 1},
        right={"include": ["base.yaml"]},
        base={"x": 0, "y": 0},
    )
    assert read_tree(path) == {"x": 0, "y": 0}, "right comes later and says what base says"


def test_a_circle_of_includes_is_drawn(write):
    path = write(a={"include": ["b.yaml"]}, b={"include": ["c.yaml"]}, c={"include": ["a.yaml"]})
    with pytest.raises(ConfigError, match=r"in a circle: a.yaml -> b.yaml -> c.yaml -> a.yaml$"):
        read_tree(path)


def test_an_include_that_is_missing_is_named(write):
    assert "absent.yaml: No such file" in refusal(write(run={"include": ["absent.yaml"]}))


# Files that are not configurations


WRONG_FILES = [
    (b"steps: [1", "not valid YAML: while parsing a flow sequence"),
    (b"a: b: c", "not valid YAML: mapping values are not allowed here"),
    (b"name: \xff\xfe", "not valid YAML: 'utf-8'"),
    (b"- a\n- b\n", "expected settings as `name: value`, found a list"),
    (b"just words", "expected settings as `name: value`, found text"),
    (b"", "expected settings as `name: value`, found nothing"),
    (b"7", "expected settings as `name: value`, found 7"),
]


@pytest.mark.parametrize("content, words", WRONG_FILES)
def test_what_is_wrong_with_a_file(tmp_path, content, words):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}: {words}")


def test_no_file(tmp_path):
    give = "give the path of a run's YAML file"
    absent = tmp_path / "absent.yaml"
    assert refusal(absent) == f"{absent}: No such file or directory; {give}"
    assert refusal(tmp_path) == f"{tmp_path}: Is a directory; {give}"
    os.mkfifo(tmp_path / "run.yaml")
    for path in (tmp_path / "run.yaml", "/dev/zero"):
        assert "not a file" in refusal(path)
    absent.symlink_to(absent)
    for name in ("a\0b", "x" * 5000, absent.name):
        message = refusal(tmp_path / name)
        assert len(message) < 4100
        assert "yaml" in message or "path" in message


def test_yaml_cannot_run_code(write, tmp_path):
    marker = tmp_path / "ran"
    message = refusal(write(run=f"name: !!python/object/apply:os.mkdir ['{marker}']\n"))
    assert "not valid YAML" in message
    assert "python/object/apply:os.mkdir" in message
    override = f"name=!!python/object/apply:os.mkdir ['{marker}']"
    assert "not valid YAML" in refusal(write(run=SMALLEST), override)
    assert not marker.exists()


# Names that do not exist


TYPOS = [
    ("step=3", "step", "steps"),
    ("optimizer.lrr=1", "optimizer.lrr", "lr"),
    ("roles.critic.optimizer.warmup=1", "roles.critic.optimizer.warmup", "warmup_steps"),
    ("roles.optimizer.pth=x", "roles.optimizer.pth", "path"),
    ("algorithm.kl.coeficient=1", "algorithm.kl.coeficient", "coefficient"),
    ("data.train.path=[x]", "data.train.path", "paths"),
    ("algorithm.advantage={name: gae, gama: 1}", "algorithm.advantage.gama", "gamma"),
    ("algorithm.advantage={name: grpo, epsillon: 1}", "algorithm.advantage.epsillon", "epsilon"),
]


@pytest.mark.parametrize("word, name, near", TYPOS)
def test_a_typo_is_answered_with_its_neighbours(write, word, name, near):
    message = refusal(write(run=SMALLEST), word)
    assert re.search(
        rf"^  {re.escape(name)}: no such setting; did you mean {near}\b", message, re.M
    )


def test_all_mistakes_are_told_at_once_with_the_file(write):
    given = tree(steps=0, seed=-1, directry="x", offload__xyz=1)
    del given["model"]
    path = write(run=given)
    assert sorted(refusal(path).splitlines()) == [
        "  directry: no such setting; did you mean directory?",
        "  model: is needed and not given",
        "  offload.xyz: no such setting; known: gradients, optimizer, parameters",
        "  seed = -1: Input should be greater than or equal to 0",
        "  steps = 0: Input should be greater than or equal to 1",
        f"{path}:",
    ]


KINDS = "files, reasoning_gym"
WRONG_KINDS = [
    ({"algorithm": {"advantage": {"name": "reinforce"}}}, "'reinforce': must be one of gae, gdpo"),
    ({"data": {"train": {"paths": ["a.jsonl"]}}}, f"kind: is needed .*; one of {KINDS}"),
    ({"data": {"train": {"kind": "hub"}}}, f"data.train.kind = 'hub': must be one of {KINDS}"),
    ({"rollout": {"engine": "tgi"}}, "^config:\n  rollout.engine = 'tgi': .*'hf' or 'none'"),
    ({"optimizer": None}, r"  optimizer = None: expected a section, such as {lr: \.\.\.}"),
    ({7: "x"}, "Keys should be strings"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_KINDS)
def test_a_value_of_the_wrong_kind_is_answered_with_what_is_allowed(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(SMALLEST | changes)


# Back to YAML


SECTIONS = {
    "optimizer": {"schedule": "cosine", "decay_steps": 10},
    "model__fp8": {"recipe": "delayed"},
    "algorithm__advantage": {"name": "gae", "lam": 0.95},
    "algorithm__loss": {"name": "gspo", "clip_low": 0.1},
    "data__evaluation": {"kind": "reasoning_gym", "task": "chain_sum", "size": 5},
}
settings_of_runs = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,8}\Z"),
        "seed": st.integers(0, 2**63 - 1),
        "optimizer__lr": st.floats(1e-300, 1e2, exclude_min=True),
        "optimizer__weight_decay": st.floats(0, 1e2),
        "rollout__temperature": st.floats(0.01, 2),
        "rollout__stop": st.lists(st.text(max_size=4), max_size=2),
        "algorithm__entropy_coefficient": st.floats(-1e9, 1e9),
        "checkpoint__resume": st.sampled_from(["auto", "never", "must"]),
        "metrics__terminal": st.sampled_from(["auto", "live", "lines", "off"]),
        "model__path": st.text(
            st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]),
            min_size=1,
            max_size=9,
        ),
    }
)


@given(settings_of_runs)
@example({"rollout__stop": ["\n", "é", "null", "1e-3"]})
def test_any_run_survives_its_dump(values):
    config = parse(**SECTIONS, **values)
    text = dump_config(config)
    assert parse_config(yaml.safe_load(text)) == parse_config(read_yaml(text)) == config


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda values: st.lists(values) | st.dictionaries(st.text("aZ1~<:\n é"), values),
    max_leaves=9,
)


@given(st.dictionaries(st.text("abcN1=<"), plain))
def test_free_options_survive_their_dump(options):
    again = parse_config(read_yaml(dump_config(parse(reward__options=options)))).reward.options
    assert repr(again) == repr(options)


TASK = {"kind": "reasoning_gym", "task": "chain_sum", "size": 5}


UNWRITABLE = [
    ({"k": math.inf}, "k = inf: must be finite"),
    ({"k": {"m": [1, math.nan]}}, "k.m.1 = nan: must be finite"),
    ({"k": {1: 2}}, "k.1: a name must be text, and 1 is int; write it in quotes"),
    ({"k": [{True: 2}]}, "k.0.True: a name must be text, and True is bool; write it in quotes"),
    ({"k": {None: 2}}, "k.None: a name must be text, and None is NoneType; write it in quotes"),
]


@pytest.mark.parametrize(
    "name, changes",
    [
        ("reward.options", lambda options: {"reward__options": options}),
        ("rollout.engine_options", lambda options: {"rollout__engine_options": options}),
        ("data.train.options", lambda options: {"data__train": {**TASK, "options": options}}),
        ("data.evaluation.options",
         lambda options: {"data__evaluation": {**TASK, "options": options}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("options, told", UNWRITABLE)
def test_options_that_no_dump_can_say_are_named(name, changes, options, told):
    with pytest.raises(ConfigError) as caught:
        parse(**changes(options))
    assert f"{name}: {told}" in str(caught.value)


# What Python cannot make of a text, and what PyYAML makes of it that nobody meant


@pytest.mark.parametrize("names", ["5", "[5]", "{a: b}", "base.yaml", "[[base.yaml]]", "true"])
def test_an_include_that_is_no_list_of_files(write, names):
    assert "expected a list of files" in refusal(write(run=f"include: {names}\nname: a\n"))


@pytest.mark.parametrize(
    "word",
    ["steps=true", "steps=yes", "steps=1:30", "steps=1_000", "steps='3'", "steps=2.0",
     "optimizer.lr=true", "optimizer.lr='1e-6'", "rollout.top_p=true", "rollout.top_k=true",
     "algorithm.loss.dual_clip='3'", "steps=[1]", "steps=.nan"],
)  # fmt: skip
def test_what_is_no_number_is_not_taken_for_one(write, word):
    name = word.partition("=")[0]
    assert f"  {name} = " in refusal(write(run=SMALLEST), word)


def test_words_of_version_1_1_are_words(write):
    config = load_config(write(run=SMALLEST), ["metrics.terminal=off", "data.shuffle=no"])
    assert config.metrics.terminal == "off"
    assert config.data.shuffle is False


@pytest.mark.parametrize(
    "word",
    ["name=" + "x" * 100_000 + "!", "steps=" + "x" * 100_000, "x" * 100_000 + "=1",
     "model." + "x" * 100_000 + "=1", "x" * 100_000, "steps." + "x" * 100_000 + "=1",
     "data.train={kind: " + "x" * 100_000 + "}", "rollout.stop=" + "x" * 100_000,
     "reward.function=" + "x" * 100_000,
     "optimizer={" + ", ".join(f"a{i}: 1" for i in range(3000)) + "}"],
)  # fmt: skip
def test_long_values_are_cut(write, word):
    assert len(refusal(write(run=SMALLEST), word)) <= 4000


def test_a_key_of_verls_over_a_file_of_ours(write):
    said = refusal(write(run=SMALLEST), "trainer.nnodes=2", "optimizer.trainer=1")
    assert "trainer: a key of verl's" in said
    assert "python -m verl_hpc migrate --keys trainer" in said
    assert "optimizer.trainer: no such setting; known: " in said
