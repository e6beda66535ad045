"""Command lines in Hydra's syntax, older names, tutorials' keys, and what goes wrong."""

import itertools
import json
import logging
from pathlib import Path

import pytest
import yaml

from tests.unit.migration.cases import WORDS as BASE
from verl_hpc.config.foreign import is_foreign
from verl_hpc.config.load import load_config
from verl_hpc.errors import ConfigError
from verl_hpc.layout.not_mapped import BY_NAME
from verl_hpc.migration.legacy import OWN, older
from verl_hpc.migration.models import model_at
from verl_hpc.migration.reference import Reference, reference
from verl_hpc.migration.table import find
from verl_hpc.migration.translate import load_run, migrate, migrate_tree
from verl_hpc.migration.values import Values
from verl_hpc.migration.words import read_words
from verl_hpc.placement.layouts import place_roles

SIZES = Path(__file__).parents[3] / "configs/model/Qwen3-8B.json"


VALUES = {
    "a=1e-6": 1e-6,
    "+a=True": True,
    "++a=null": None,
    "a=['console','wandb']": ["console", "wandb"],
    'a=["console","wandb"]': ["console", "wandb"],
    "a=[0.9,0.95]": [0.9, 0.95],
    "a={b:1,c:x}": {"b": 1, "c": "x"},
    "a='error'": "error",
    "a=seq-mean-token-mean": "seq-mean-token-mean",
    "a=/data/x:y": "/data/x:y",
    "a=@odd": "@odd",
    "--a=5": 5,
}


def test_values():
    assert {word: read_words([word]).given["a"] for word in VALUES} == VALUES


def test_the_megatron_form():
    name = "--config-name=ppo_megatron_trainer"
    for word in ("model_engine=megatron", name, f"{name}.yaml"):
        assert read_words([word]).form == "megatron", word


def test_words_that_say_nothing():
    for word, said in (
        ("plain", "expected key=value"),
        ("~data.seed", "leave it out, and set ours"),
        ("--config-name=sft_trainer", "ppo_trainer, ppo_megatron_trainer"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_words([word])


TUTORIAL = {
    "algorithm": {"name": "ppo", "clip_range": 0.1, "kl_coef": 0.02, "lam": 0.95},
    "model": {"pretrain_model_path": "gpt2", "reward_function": "exact_match"},
    "data": {"train_path": "rows.jsonl", "batch_size_per_gpu": 8, "max_prompt_length": 64},
    "engine": {"actor_type": "fsdp", "critic_type": "fsdp", "num_gpus": 2},
    "train_micro_batch_size_per_gpu": 4,
    "rollout_per_device_batch_size": 16,
    "adam_eps": 1e-5,
    "trainer": {"total_epochs": 2},
}


def test_a_tutorials_file():
    assert is_foreign(TUTORIAL)
    run = migrate_tree(TUTORIAL)
    config = run.config()
    assert run.ranks == 2
    assert (config.batch.size, config.batch.mini_batches) == (16, 1)
    assert config.model.path == "gpt2"
    assert config.reward.function == "exact_match"
    assert config.data.train.paths == ["rows.jsonl"]
    assert config.algorithm.advantage.name == "gae"
    assert config.algorithm.loss.clip_low == config.algorithm.loss.clip_high == 0.1
    assert (config.algorithm.kl.placement, config.algorithm.kl.coefficient) == ("reward", 0.02)
    assert config.optimizer.epsilon == 1e-5
    assert config.rollout.max_num_seqs == 16
    assert config.batch.max_tokens_per_micro_batch == 4 * (64 + 512)
    assert config.epochs == 2
    assert not config.evaluation.wanted


def test_a_tutorials_placement():
    tree = TUTORIAL | {"placement": {"actor_devices": [0], "critic_devices": [1]}}
    found = migrate_tree(tree)
    assert found.config().placement == {"actor": "0-0", "critic": "1-1"}
    placed = place_roles(found.config(), found.ranks, found.ranks)
    assert placed.pool_of["actor"] != placed.pool_of["critic"]


def test_what_a_tutorial_says_and_nothing_here_is():
    engine = {"actor_type": "vllm", "critic_type": "fsdp", "num_gpus": 2}
    tree = TUTORIAL | {"algorithm": {"name": "ppo", "value_loss_coef": 0.5}, "engine": engine}
    run = migrate_tree(tree)
    assert "an optimizer each" in run.notes["algorithm.value_loss_coef"]
    assert (run.config().rollout.engine, run.config().parallel.engine) == ("vllm", "fsdp")
    assert "expected one of ppo" in str(migrate_tree({"algorithm": "dreamer"}).refused[0])
    (refused,) = migrate_tree(TUTORIAL | {"namespace": 1}).refused
    assert refused.key == "namespace" and "nearest of ours: name" in str(refused)


def test_a_file_of_ours_is_ours(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("name: x\nrecipe: rl\nsteps: 1\nmodel: {path: m}\nmodle: 1\n")
    with pytest.raises(ConfigError, match="modle"):
        load_run(file)
    assert not is_foreign({"name": "x", "recipe": "rl", "model": {"path": "m"}})


def test_every_other_name_means_a_key_that_is_known():
    meant = [*older().renamed.items(), *((n, one.key) for n, one in older().tutorials.items())]
    unknown = [
        (old, key)
        for old, key in meant
        if not find(key)
        and not any(name.startswith(f"{key}.") for name in reference().keys)
        and not key.startswith(("reward.reward_kwargs", OWN))
    ]
    assert unknown == []


def test_the_words_of_a_tutorials_script():
    words = ["--num-rollout-workers", "2", "--actor_model", "gpt2", "data.train_path=a.jsonl"]
    found = migrate([*words, "batch_size=8", "steps=3", "lr=1e-5", "enable_profiling=false"])
    config = found.config()
    assert (found.ranks, config.steps, config.batch.size) == (2, 3, 8)
    assert (config.model.path, config.optimizer.lr) == ("gpt2", 1e-5)
    assert config.rollout.tensor_parallel == 1


@pytest.mark.parametrize(
    "tree",
    [
        {"actor_rollout_ref": {"model": {"path": "m"}}},
        {"algorithm": "ppo", "model": {"path": "m"}},
        TUTORIAL,
    ],
)
def test_a_file_of_verls_is_told_from_a_wrong_one_of_ours(tmp_path, tree):
    """Every command but train, which takes it, refuses it."""
    file = tmp_path / "ppo.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=f"python -m verl_hpc migrate {file} > run.yaml"):
        load_config(file)


TEXTS = [
    "actor_rollout_ref.model.path",
    "critic.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "reward.custom_reward_function.path",
    "reward.custom_reward_function.name",
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "actor_rollout_ref.actor.loss_agg_mode",
]


def test_what_has_to_be_a_text_is_one():
    given = {
        "algorithm.adv_estimator": "gae",
        "actor_rollout_ref.model.path": "m",
        "critic.model.path": "c",
        "data.train_files": "x",
        "reward.custom_reward_function.path": "f.py",
    }
    may_be_null = ("actor_rollout_ref.model.tokenizer_path", "reward.custom_reward_function.path")
    wrong = []
    for key, value in itertools.product(TEXTS, ("[a,b]", "true", "null")):
        words = [f"{name}={said}" for name, said in (given | {key: value}).items()]
        reasons = [str(one) for one in migrate(words).refused if one.key == key]
        is_taken = value == "null" and key in may_be_null
        if bool(reasons) == is_taken or not all("expected a text" in one for one in reasons):
            wrong.append((key, value, reasons))
    assert wrong == []


def test_a_tutorials_reward_function_at_the_top():
    tree = TUTORIAL | {"reward_function": "exact_match"}
    tree["model"] = {"pretrain_model_path": "m"}
    assert migrate_tree(tree).config().reward.function == "exact_match"


def test_what_replaces_what_is_told_once(caplog):
    words = ["reward.custom_reward_function.path=a.py", "reward.custom_reward_function.name=f"]
    with caplog.at_level(logging.WARNING):
        migrate([*BASE, *words, f"{OWN}reward.function=math"])
    assert [line for line in caplog.messages if "replaces" in line] == []


@pytest.mark.parametrize("key", ["actor_rollout_ref.model.path", "data.train_files"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("~nosuchuser/x", "~nosuchuser has no home directory here; write it out"),
        ("${oc.env:HOME}", "${oc.env:HOME} is not computed here; write its value"),
        ("x/${oc.env:HOME}", "${oc.env:HOME} is not computed here"),
        ("${oc.env:A,${.b}}", "is not computed here"),
        ("${now:%Y}_${trainer.nnodes}", "${now:%Y} is not computed here"),
    ],
)
def test_what_only_another_machine_or_time_knows_is_refused(key, value, said):
    for text in (value, f"['{value}']") if key == "data.train_files" else (value,):
        refused = [str(one) for one in migrate([*BASE, f"{key}={text}"]).refused]
        assert len(refused) == 1 and refused[0].startswith(key) and said in refused[0]


def test_a_key_is_looked_up_within_a_list():
    given = {"data.train_files": ["${.val_files}/a", "b"], "data.val_files": "c"}
    assert Values(given, "fsdp")["data.train_files"] == ["c/a", "b"]


def test_a_default_that_is_null_is_not_another_forms(monkeypatch):
    forms = {"fsdp": {"a": 1, "b": 2}, "megatron": {"a": None}}
    monkeypatch.setattr("verl_hpc.migration.values.reference", lambda: Reference("", forms))
    assert Values({}, "megatron").default("a") is None
    assert Values({}, "megatron").default("b") == 2


def test_a_file_of_hydras_beside_the_script(tmp_path):
    """Words are over it; the file of verl's that it lies over chooses the form."""
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "mine.yaml"
    below = {"hydra": {"searchpath": ["file://x"]}, "defaults": ["ppo_megatron_trainer", "_self_"]}
    file.write_text(yaml.safe_dump(below | {"data": {"seed": 3, "train_batch_size": 8}}))
    words = [*BASE, "--config-name=mine", "data.train_batch_size=16"]
    with_path = [*words, f"--config-path={tmp_path}/config"]
    for said in (read_words(words, tmp_path), read_words(with_path)):
        assert (said.form, said.given["data.seed"]) == ("megatron", 3)
        assert said.given["data.train_batch_size"] == 16
    assert not migrate([*words, "actor_rollout_ref.actor.ppo_mini_batch_size=8"], tmp_path).refused
    with pytest.raises(ConfigError, match="--config-name=mine: without --config-path"):
        read_words(words)


def test_a_files_defaults_are_verls_own_files():
    said = migrate_tree({"defaults": ["ppo_trainer", {"override model_engine": "megatron"}]}, BASE)
    assert not said.refused and said.config().parallel.engine == "megatron"
    for other in ("mine", ["ppo_trainer", "mine"], [{"actor@actor_rollout_ref.actor": "mine"}]):
        (refused,) = migrate_tree({"defaults": other, "trainer": {"nnodes": 1}}, BASE).refused
        assert "mine" in str(refused) and "another file of Hydra's" in str(refused)


def test_a_models_config_is_preferred_to_its_name(tmp_path):
    """A directory has a name of vision-language models, and another model in it."""
    model = tmp_path / "Qwen3-VL-8B"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "phimoe"}))
    assert "model_type = 'phimoe' is not supported" in model_at(str(model))[1]
    (model / "config.json").write_text(SIZES.read_text(encoding="utf-8"))
    assert model_at(str(model)) == ("mapped", "")


def test_the_family_of_a_models_name():
    families = {
        "DeepSeek-R1": "deepseek_v3", "DeepSeek-R1-0528-Qwen3-8B": "", "gemma-2b-it": "gemma",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron_h", "Llama-3.1-Nemotron-Nano-8B-v1": "",
        "MiMo-7B-RL": "mimo", "mimosa-7b": "", "gemma-2-9b": "gemma2", "gemma-7b": "gemma",
        "Qwen3-Coder-Next": "qwen3_next", "deepseek-moe-16b": "deepseek", "QVQ-72B": "qwen2_vl",
        "OLMoE-1B-7B-0924": "olmoe", "Phi-3.5-MoE-instruct": "phimoe", "Pixtral-12B": "pixtral",
        "ERNIE-4.5-21B-A3B-PT": "ernie4_5_moe", "Llama-4-Scout-17B-16E": "llama4",
        "Llama-3.2-11B-Vision": "mllama", "Hunyuan-7B-Instruct": "hunyuan_v1_dense", "Hy3": "hy_v3",
        "GLM-5": "glm_moe_dsa", "GLM-4.5-Air": "glm4_moe", "GLM-5.3-Flash": "",
    }  # fmt: skip
    said = {name: model_at(f"a/{name}")[1] for name in families}
    refused = {n: f for n, f in families.items() if f and f not in BY_NAME}
    assert [n for n, f in refused.items() if f" a {f} " not in said[n]] == []
    assert [n for n in families.keys() - refused.keys() if said[n]] == []
    kinds = {"qwen3_30b_a3b": "mapped", "Qwen3-8B": "mapped", "mine": None, "gemma-7b": "by_name"}
    kinds |= dict.fromkeys(("Qwen3.5-27B", "Qwen3_5-35B-A3B", "GLM-5.1", "GLM-5-FP8"), "by_name")
    assert {name: model_at(name)[0] for name in kinds} == kinds
