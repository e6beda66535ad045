"""The bounds of every kind of number, and paths that no file can have."""

from functools import reduce

import pytest

from tests.unit.config.trees import GAE, parse
from verl_hpc.errors import ConfigError

INFINITY = float("inf")
GYM = {"kind": "reasoning_gym", "task": "a", "size": 1}
FILES = {"kind": "files", "paths": ["a.jsonl"]}
OUT_OF_BOUNDS = {
    "steps": [0, 1.5, True, "3", 2**31],
    "seed": [-1, 2**63, 10**30],
    "batch__size": [0, 10**9],
    "batch__max_tokens_per_micro_batch": [2**31],
    "optimizer__lr": [0.0, True, 1e30, INFINITY, "fast"],
    "optimizer__weight_decay": [-1e-9, 1e308],
    "optimizer__clip_grad": [1e308],
    "optimizer__beta1": [1.0, 1.1],
    "optimizer__beta2": [1],
    "roles__critic__optimizer": [{"beta1": 1.0}],
    "roles__critic__head": ["values"],
    "roles__critic__placement": ["Train"],
    "placement__train": [-1, 1.5, "1/0", "half", "", "0-3,5", "9" * 200],
    "rollout__num_samples": [10**9],
    "rollout__temperature": [-0.1, 1e-308, 0.0099, 1e308, float("nan")],
    "rollout__kv_cache_gib": [1e30],
    "rollout__top_p": [0.0, 1.1],
    "rollout__top_k": [-2],
    "rollout__gpu_memory_utilization": [0.0, 1.0],
    "runtime__threads_per_rank": [1_000_000],
    "runtime__collective_timeout_s": [1e308, 1e-300],
    "runtime__late_after_s": [1e-300, INFINITY],
    "reward__timeout_s": [0, 1e308, 1e-300],
    "algorithm__kl": [{"coefficient": 1e300}, {"estimator": "k4"}],
    "algorithm__loss__clip_low": [-0.1, 1.1],
    "algorithm__loss__clip_high": [-0.1],
    "algorithm__loss__dual_clip": [1.0],
    "algorithm__loss_scale": [0.0],
    "algorithm__entropy_coefficient": [INFINITY],
    "algorithm__aggregation": ["mean"],
    "checkpoint__keep": [0],
    "checkpoint__every": [-1],
    "data__train": [
        *(GYM | {"size": 10**30}, GYM | {"size": 10**9}, GYM | {"template": "no slot"}),
        *(FILES | {"paths": []}, FILES | {"limit": 10**30}),
    ],
}


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in OUT_OF_BOUNDS.items() for v in vs])
def test_values_out_of_bounds_are_named(name, value):
    with pytest.raises(ConfigError) as caught:
        parse(**{name: value})
    assert name.replace("__", ".") in str(caught.value)


AT_BOUNDS = {
    "algorithm__loss__clip_low": [0.0, 1.0],
    "algorithm__loss__clip_high": [3.0],
    "algorithm__loss__dual_clip": [None],
    "algorithm__entropy_coefficient": [-0.01],
    "rollout__top_p": [1.0],
    "rollout__top_k": [-1],
    "optimizer__clip_grad": [0.0],
    "checkpoint__every": [0],
}


@pytest.mark.parametrize("name, value", [(n, v) for n, vs in AT_BOUNDS.items() for v in vs])
def test_values_at_their_bounds_are_taken(name, value):
    assert reduce(getattr, name.split("__"), parse(**{name: value})) == value


WRONG_PATHS = {
    "": "at least 1 character",
    "a\0b": "control character",
    "a\nb": "line break",
    "x/" * 2500: "at most 4000",
    "a/" + "x" * 256: "255 bytes",
    "a/" + "é" * 128: "255 bytes",
}


@pytest.mark.parametrize(("path", "told"), WRONG_PATHS.items())
def test_paths_that_no_file_can_have(path, told):
    changes = {
        name: {name.replace(".", "__"): path}
        for name in ("model.path", "model.tokenizer", "directory", "roles.critic.path")
    }
    changes["roles.critic.path"] |= GAE
    changes["data.train.paths.0"] = {"data__train": {"kind": "files", "paths": [path]}}
    if path:
        changes["reward.function"] = {"reward__function": f"{path}:score"}
    for name, change in changes.items():
        with pytest.raises(ConfigError, match=f"  {name} = .*{told}") as caught:
            parse(**change)
        assert len(str(caught.value)) < 500
