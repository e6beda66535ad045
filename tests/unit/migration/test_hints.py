"""A setting that does not exist, but in verl, is answered with its name here."""

import pytest

from tests.unit.cluster.requests import write
from tests.unit.config.trees import tree
from verl_hpc.migration.hints import with_verls_names

KEYS = {
    # The last part, or several parts, of a key; what may lie between is left out by people.
    "rollout.n": "rollout.num_samples",
    "algorithm.kl_coef": "algorithm.kl.coefficient",
    "algorithm.adv_estimator": "algorithm.advantage.name",
    "algorithm.clip_ratio_high": "algorithm.loss.clip_high",
    "algorithm.gamma": "algorithm.advantage.gamma",
    "data.train_batch_size": "batch.size",
    "data.max_prompt_length": "rollout.max_prompt_tokens",
    "total_epochs": "epochs",
    "checkpoint.save_freq": "checkpoint.every",
    "optimizer.grad_clip": "optimizer.clip_grad",
    "nnodes": "the number of ranks that are started",
    "lr": "optimizer.lr or roles.critic.optimizer.lr",
}


def test_verls_keys_are_named_as_they_are_here():
    for name, ours in KEYS.items():
        message = with_verls_names(f"run.yaml:\n  {name}: no such setting; known: a, b\n  c: bad")
        first, second, last = message.splitlines()
        assert (first, last) == ("run.yaml:", "  c: bad")
        assert second.startswith(f"  {name}: no such setting; verl's ")
        assert second.endswith(f" is {ours} here")


def test_verls_values_are_named_as_they_are_here():
    for name, value, ours in (
        ("algorithm.loss.name", "vanilla", "ppo_clip"),
        ("algorithm.loss.name", "geo_mean", "gmpo"),
        ("algorithm.advantage.name", "tir_optimal_token_baseline", "optimal_token_baseline"),
        ("algorithm.kl.estimator", "low_var_kl+", "k3+"),
    ):
        found = with_verls_names(f"run.yaml:\n  {name} = '{value}': must be one of a, b")
        assert found.endswith(f"= '{value}': verl's {value} is {ours} here; must be one of a, b")
    other = "algorithm.loss.name = 'other': must be one of a, b"
    assert with_verls_names(other) == other


def test_what_is_not_one_setting_here_is_looked_up():
    known = "no such setting; known: a, b"
    refused = with_verls_names(f"rollout.free_cache_engine: {known}")
    assert (
        "a key of verl's; `python -m verl_hpc migrate --keys actor_rollout_ref.rollout" in refused
    )
    section = with_verls_names("actor: no such setting; did you mean directory?")
    assert "did you mean directory? `python -m verl_hpc migrate --keys actor` lists" in section


@pytest.mark.parametrize("name", ["optimizer.lrr", "rollout.path", "rollout.name_of_it", "step"])
def test_what_verl_has_not_or_means_many_things_by_stays(name):
    message = f"{name}: no such setting; did you mean lr?"
    assert with_verls_names(message) == message


def test_commands_say_it(tmp_path, refuses):
    words = ["config", "--config", write(tmp_path / "run.yaml", tree(rollout__n=8))]
    assert "verl's actor_rollout_ref.rollout.n is rollout.num_samples" in refuses(*words)
    write(tmp_path / "run.yaml", tree())
    assert "verl's vanilla is ppo_clip here" in refuses(*words, "algorithm.loss.name=vanilla")
