"""Runs compute the same wherever their roles are, and in whatever layouts: same_runs.yaml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml

from tests.jobs.launch import tensors_of
from tests.mpi.recipe_runs import (
    BATCH,
    RECIPES,
    ROLLOUT,
    assert_same,
    configure,
    finish,
    write_reward,
)
from tests.slow import all_slow

pytestmark = pytest.mark.world(4)

CASES = yaml.safe_load(Path(__file__).with_name("same_runs.yaml").read_text())
FURTHER = [
    "optimal token baseline",
    "reverse KL",
    "kto",
    "refill",
    "a critic of another size in another layout",
]
"""Their roles and placements are those of others."""
# What is so in every step, else the comparison would say little.
HOLDS = {
    "chosen tokens": lambda row: 0 < row["critic/score/mean"] < 1,
    "remax": lambda row: (
        0 < row["critic/score/mean"] < 1
        and row["greedy/critic/score/mean"] != row["critic/score/mean"]
    ),
    # The process reward model has learned before it is asked.
    "prime": lambda row: row["prm/loss"] > 0 and row["prm/reward"] != 0.0,
    "refill": lambda row: row["batch/prompts_asked"] > 6 and row["batch/rounds"] > 1,
    "reverse KL": lambda row: "actor/forward_kl" not in row,
    "forward KL": lambda row: row["actor/forward_kl"] > 0,
    "dpo": lambda row: row["preference/loss"] > 0 and row.get("val/margin") != 0.0,
    "kto": lambda row: row["preference/loss"] > 0 and row.get("val/margin") != 0.0,
}
MODELS = {
    "$deep": {"num_hidden_layers": 4},
    "$teacher": {"hidden_size": 96, "num_attention_heads": 4},
    "$vllm": {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2},
    "$small": {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64},
}
SETTINGS = {
    "$twice": BATCH | {"update_epochs": 2, "shuffle_mini_batches": "samples"},
    "$few": {"size": 4, "mini_batches": 2, "max_tokens_per_micro_batch": 2000},
    "$apart": ROLLOUT,
    "$four": ROLLOUT | {"num_samples": 4},
}
ALIKE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if int(ground_truth) % 3:
        return 1.0
    return (sum(map(ord, solution_str)) % 5) / 4
"""
"""A reward that gives many prompts responses of equal scores."""


@pytest.fixture(scope="module")
def words(here, tiny_model, shared_directory):
    """What words that begin with $ stand for."""
    known = SETTINGS | {name: str(tiny_model(**sizes)) for name, sizes in MODELS.items()}
    for function in ("compute_score", "score_tokens"):
        known[f"${function}"] = write_reward(here, shared_directory, function)
    known["$alike"] = f"{shared_directory}/alike.py:compute_score"
    files, random = {"alike.py": ALIKE}, Random(0)
    for name, count in (("dpo", 12), ("evaluation", 5), ("kto", 12)):
        rows = [answers(random, f"{name} {i}:", i % 3 == 0) for i in range(count)]
        files[f"{name}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
        known[f"${name}"] = {"kind": "files", "paths": [f"{shared_directory}/{name}.jsonl"]}
    for name, text in files.items() if here.world.rank == 0 else ():
        (shared_directory / name).write_text(text)
    here.control.barrier()
    return known


def answers(random, prompt, label):
    """A pair of answers to a prompt, of which the first also stands by itself."""
    chosen, rejected = (
        "".join(random.choices("abcdef", k=random.randint(1, 9))) + end for end in "ab"
    )
    pair = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    return pair | {"completion": chosen, "label": label}


def put(words, tree):
    """Settings with what their words stand for."""
    if isinstance(tree, dict):
        return {name: put(words, value) for name, value in tree.items()}
    return words.get(tree, tree) if isinstance(tree, str) else tree


@pytest.mark.parametrize("name", [*sorted(CASES.keys() - FURTHER), *all_slow(*FURTHER)])
def test_runs_compute_the_same(here, tiny_model, shared_directory, words, name):
    case, rows_of, weights_of = CASES[name], {}, {}
    base = RECIPES.get(case.get("recipe"), {})
    for way, changes in case["runs"].items():
        label = re.sub(r"\W+", "-", f"{name}-{way}")
        settings = put(words, {**base, **case["all"], **changes})
        config = configure(label, tiny_model(), shared_directory, **settings)
        rows_of[way] = finish(here, config)
        if here.world.rank == 0:
            saved = tensors_of(config.run_directory / "checkpoints/latest")
            weights_of[way] = {n: t for n, t in saved.items() if ".optimizer" not in n}
    first, *others = case["runs"]
    for other in others:
        rel = case.get("rel", 1e-5)
        assert_same(rows_of[other], rows_of[first], tuple(case["metrics"]), rel=rel)
        if here.world.rank == 0:
            assert weights_of[other].keys() == weights_of[first].keys()
            for tensor, value in weights_of[other].items() if "weights" in case else ():
                np.testing.assert_allclose(value, weights_of[first][tensor], rtol=0, atol=1e-5)
    holds = HOLDS.get(name, lambda row: row["actor/grad_norm"] > 1e-4)
    assert [row for row in rows_of[first] if not holds(row)] == []
