import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.config.trees import SMALLEST
from tests.unit.sources.hubs import COMMIT, OTHER, hf_repository
from verl_hpc.config.load import parse_config
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.testing.local import LocalControl
from verl_hpc.trainer.fingerprint import changed, check_fingerprint, fingerprint

BEFORE = {
    "recipe": "rl", "seed": "0", "data.train": "aa", "data.shuffle": "true", "data.chat": "auto",
    "config.json: rope_theta": "10000.0", "tokenizer": "ee", "model.path": "cc",
    "reward.function": "gsm8k", "roles.reward.path": "rr",
}  # fmt: skip


def test_what_one_life_does_not_know_is_not_compared():
    """Without a KL reference nobody reads the first weights."""
    check_fingerprint(BEFORE, BEFORE, force=False)
    now = {name: value for name, value in BEFORE.items() if name != "model.path"}
    assert changed(BEFORE, now) == changed(now, BEFORE) == []
    check_fingerprint({}, BEFORE, force=False)


CHANGED = [
    ("seed", "9", "seed = 9, and was 0"),
    ("data.train", "ab", "data.train: other rows"),
    ("data.shuffle", "false", "data.shuffle = false, and was true"),
    ("data.chat", "always", "data.chat = always, and was auto"),
    ("config.json: rope_theta", "2.0", "config.json: rope_theta = 2.0, and was 10000.0"),
    ("tokenizer", "ef", "tokenizer: other files than the run has used so far"),
    ("model.path", "dd", "model.path: other weights than those that the run started from"),
    ("roles.reward.path", "rs", "roles.reward.path: other weights than the run has computed"),
]


@pytest.mark.parametrize("name, value, words", CHANGED)
def test_what_changed_is_named_and_can_be_forced(name, value, words):
    now = BEFORE | {name: value}
    with pytest.raises(ConfigError) as caught:
        check_fingerprint(BEFORE, now, force=False)
    assert words in str(caught.value)
    assert "checkpoint.resume: force" in str(caught.value)
    check_fingerprint(BEFORE, now, force=True)


def test_another_recipe_is_another_run():
    now = BEFORE | {"recipe": "sft", "seed": "1"}
    with pytest.raises(ConfigError) as caught:
        check_fingerprint(BEFORE, now, force=True)
    assert "recipe = sft, and was rl; seed = 1, and was 0" in str(caught.value)
    assert "force" not in str(caught.value)


def test_a_run_goes_on_with_another_reward():
    """Users mend reward functions between jobs."""
    now = BEFORE | {"reward.function": "math"}
    assert changed(BEFORE, now) == ["reward.function"]
    check_fingerprint(BEFORE, now, force=False)


KL = {"kl": {"placement": "reward"}}
MODEL = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16,
    "num_attention_heads": 2, "vocab_size": 32,
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """What a run on `tmp_path` is made of, with other settings or another config.json."""
    for name in ("tokenizer.json", "tokenizer_config.json", "trainer_state.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?"}\n')
    (tmp_path / "reward.py").write_text("def score(response, truth): return 1.0\n")
    given = SMALLEST | {
        "data": {"train": {"kind": "files", "paths": [str(tmp_path / "rows.jsonl")]}},
        "reward": {"function": f"{tmp_path}/reward.py:score"},
    }

    def make(model=None, tokenizer: Path = tmp_path, path=tmp_path, resumes=False, **settings):
        config = parse_config(given | {"model": {"path": str(path)}} | settings)
        arch = architecture_from(MODEL | (model or {}))
        hash_of = {True: "first", False: "others"}
        paths = {name: role.model.path for name, role in config.role_settings.items()}
        weights = {
            name: SimpleNamespace(arch=arch, fingerprint=lambda of=of: hash_of[of == str(path)])
            for name, of in paths.items()
        }
        return fingerprint(LocalControl(), config, weights, tokenizer, resumes)

    return make


def test_a_field_of_config_json_that_changes_what_is_computed_is_named(run):
    assert changed(run(), run({"rope_theta": 5e5})) == ["config.json: rope_theta"]
    assert changed(run(), run({"rms_norm_eps": 0.5})) == ["config.json: norm_epsilon"]
    same = {"transformers_version": "9", "torch_dtype": "float16", "max_position_embeddings": 9}
    assert changed(run(), run(same)) == []


def test_a_tokenizer_is_its_files(run, tmp_path):
    before = run()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).write_text("{}")
    assert changed(before, run(tokenizer=copy)) == []
    (tmp_path / "trainer_state.json").write_text("[]")
    assert changed(before, run()) == []
    (copy / "tokenizer.json").write_text(json.dumps({"model": {}}))
    assert changed(before, run(tokenizer=copy)) == ["tokenizer"]
    (tmp_path / "chat_template.jinja").write_text("x")
    assert changed(before, run()) == ["tokenizer"]


def test_a_reward_is_its_name_its_options_and_its_text(run, tmp_path):
    before = run()
    function = {"function": f"{tmp_path}/reward.py:score"}
    assert changed(before, run(reward={"function": "gsm8k"})) == ["reward.function"]
    assert changed(before, run(reward=function | {"options": {"a": 1}})) == ["reward.options"]
    (tmp_path / "reward.py").write_text("def score(response, truth): return 0.0\n")
    assert changed(before, run()) == ["reward.function"]
    assert "reward.py:score" in before["reward.function"]


def test_chat_belongs_to_it(run, tmp_path):
    data = {"train": {"kind": "files", "paths": [str(tmp_path / "rows.jsonl")]}, "chat": "always"}
    assert changed(run(), run(data=data)) == ["data.chat"]


def test_a_frozen_role_that_gets_weights_of_its_own_is_another(run):
    own = {"roles": {"reference": {"path": "models/r"}}}
    shared, own = run(algorithm=KL), run(algorithm=KL, **own)
    assert changed(shared, own) == changed(own, shared) == ["roles.reference.path"]
    with pytest.raises(ConfigError, match="roles.reference.path: other weights than the run"):
        check_fingerprint(shared, own, force=False)


def test_a_frozen_role_that_comes_or_goes_is_named(run, tmp_path):
    (tmp_path / "mine.py").write_text("")
    roles = {name: {"path": f"models/{name}", "trainable": False} for name in ("judge", "cost")}

    def with_roles(*names):
        chosen = {"actor": {}} | {name: roles[name] for name in names}
        return run(recipe=f"{tmp_path}/mine.py:mine", roles=chosen)

    none, one, two = with_roles(), with_roles("judge"), with_roles("judge", "cost")
    for before, now in ((one, two), (two, one), (none, one)):
        assert changed(before, now) == ["roles that are not trained"]
    with pytest.raises(ConfigError, match="not trained = judge, and was cost, judge"):
        check_fingerprint(two, one, force=False)
    assert changed(run(), run(algorithm=KL)) == []


def test_first_weights_count_as_long_as_a_role_computes_with_them(run):
    assert run()["model.path"] == run(algorithm=KL, resumes=True)["model.path"] == "first"
    assert run(algorithm=KL)["roles.reference.path"] == "the weights of model.path"
    own = run(algorithm=KL, roles={"reference": {"path": "models/r"}}, resumes=True)
    assert "model.path" not in own and "model.path" not in run(resumes=True)
    lora = run(lora={"rank": 2, "alpha": 4.0}, resumes=True)
    assert (lora["lora of actor"], lora["model.path"]) == ("rank 2, alpha 4, all", "first")


def test_another_text_of_a_recipe_is_told_and_not_refused(run, tmp_path):
    (tmp_path / "own.py").write_text("def mine(run): return 1\n")
    before = run(recipe=f"{tmp_path}/own.py:mine")
    (tmp_path / "own.py").write_text("def mine(run): return 2\n")
    now = run(recipe=f"{tmp_path}/own.py:mine")
    assert changed(before, now) == ["recipe's file"]
    check_fingerprint(before, now, force=False)


def test_another_evaluation_is_told_and_not_refused(run, tmp_path):
    paths = [tmp_path / name for name in ("one.jsonl", "two.jsonl", "copy.jsonl")]
    for path, prompt in zip(paths, ("2?", "3?", "2?"), strict=True):
        path.write_text(f'{{"prompt": "{prompt}"}}\n')

    def evaluating(path, **settings):
        chosen = {"source": {"kind": "files", "paths": [str(path)]}} | settings
        return run(evaluation={"every": 1, "sets": {"math500": chosen}})

    before = evaluating(paths[0])
    assert changed(before, evaluating(paths[2])) == []
    (tmp_path / "other.py").write_text("def score(response, truth): return 1.0\n")
    own = {"function": f"{tmp_path}/other.py:score"}
    for now in (evaluating(paths[1]), evaluating(paths[0], reward=own),
                evaluating(paths[0], num_samples=4)):  # fmt: skip
        assert changed(before, now) == ["what an evaluation asks and how it scores"]
        check_fingerprint(before, now, force=False)


def test_rows_that_leave_training_depend_on_every_set(run, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"prompt": "{name}"}}\n')
    train = {"kind": "files", "paths": [str(tmp_path / "rows.jsonl")]}

    def dropping(*names):
        paths = {n: {"kind": "files", "paths": [str(tmp_path / f"{n}.jsonl")]} for n in names}
        sets = {name: {"source": source} for name, source in paths.items()}
        return run(data={"train": train, "overlap": "drop"}, evaluation={"sets": sets})

    assert changed(dropping("one", "two"), dropping("two", "one")) == []
    assert changed(dropping("one", "two"), dropping("two")) == ["data.train"]


def test_another_commit_of_a_model_is_noticed(run, tmp_path):
    """Also where the weights are not read again."""
    places = {c: hf_repository(tmp_path / "hub", "Org/Base", c, {}) for c in (COMMIT, OTHER)}
    before, now = (run(path=place) for place in places.values())
    assert before["revision of model.path"] == f"Org/Base@{COMMIT}"
    with pytest.raises(ConfigError) as caught:
        check_fingerprint(before, now, force=False)
    told = f"revision of model.path = Org/Base@{OTHER}, and was Org/Base@{COMMIT}"
    assert told in str(caught.value)
    check_fingerprint(before, now, force=True)
    check_fingerprint(before, run(), force=False)
