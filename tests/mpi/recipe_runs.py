"""Short runs of recipes in tests, and what they recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.trainer.train import train

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return (sum(map(ord, solution_str)) % 5) / 4


def score_tokens(response_ids, **_):
    return [(token % 5) / 4 / len(response_ids) for token in response_ids]


def score_turns(turns, **_):
    said = [turn["token_ids"] for turn in turns if turn["role"] == "assistant"]
    return [(sum(tokens) % 5) / 4 for tokens in said]
"""


def write_reward(here, directory: Path, function: str = "compute_score") -> str:
    """A reward function that tells responses of an untrained model apart; score_tokens gives a
    number for each token, score_turns one for each turn."""
    if here.world.rank == 0:
        (directory / "reward.py").write_text(REWARD)
    here.control.barrier()
    return f"{directory}/reward.py:{function}"


RECIPES = {
    "sft": {"recipe": "sft"},
    "grpo": {"recipe": "rl", "algorithm": {"kl": {"placement": "loss", "coefficient": 0.1}}},
    "chosen-tokens": {
        "recipe": "rl",
        "algorithm": {
            "advantage": {"name": "reinforce_plus_plus_baseline"},
            "loss": {"name": "clip_cov", "share": 0.1, "lower": -9.0, "upper": 9.0},
            "correction": {"reject": {"ratio": "product", "lower": 0.9999, "upper": 1.0001}},
            "overlong": {"buffer": 4, "leave_out": True},
            "drop_equal_groups": True,
            "top_entropy": 0.6,
        },
    },
    "ppo": {
        "recipe": "rl",
        "algorithm": {
            "aggregation": "seq-mean-token-mean",
            "advantage": {"name": "gae", "gamma": 0.98, "lam": 0.9},
            "kl": {"placement": "reward", "coefficient": 0.1},
        },
        "roles": {"critic": {"optimizer": {"lr": 1e-4}}},
    },
}
"""Recipes by name, with settings that leave no part of them out."""
BATCH = {"size": 6, "mini_batches": 2, "max_tokens_per_micro_batch": 400}
ROLLOUT = {
    "engine": "hf",
    "temperature": 1.2,
    "num_samples": 2,
    "max_prompt_tokens": 96,
    "overlong_prompt": "drop",
    "max_response_tokens": 12,
}
SAME_DRAWS = ROLLOUT | {"grouping": "contiguous"}
"""Samples are drawn on the same ranks in the same batches whatever trains them."""


def run_tree(name: str, model: str | Path, directory: Path, /, **changes: Any) -> dict:
    """Settings of a run that differs by `changes` from two steps on sums; its name may be that of a
    test."""
    tree = {
        "name": re.sub(r"[^A-Za-z0-9]+", "-", name),
        "steps": 2,
        "directory": str(directory / "runs"),
        "model": {"path": str(model), "dtype": "float32"},
        "optimizer": {"lr": 1e-4},
        "batch": BATCH,
        "rollout": SAME_DRAWS,
        "data": {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 30}},
        "checkpoint": {"resume": "never"},
        "metrics": {"terminal": "off", "report": False},
    }
    return tree | changes


def configure(name: str, model: str | Path, directory: Path, /, **changes: Any) -> RunConfig:
    """A run with these settings."""
    return parse_config(run_tree(name, model, directory, **changes))


def finish(here, config: RunConfig) -> list[dict[str, float]]:
    """Run it to its end; metrics by step."""
    train(here, config)
    here.control.barrier()
    rows = (config.run_directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


def run(here, name: str, model: Path, directory: Path, /, **changes: Any) -> list[dict[str, float]]:
    """Both in one."""
    return finish(here, configure(name, model, directory, **changes))


def assert_same(
    found: list[dict[str, float]],
    expected: list[dict[str, float]],
    prefixes: tuple[str, ...],
    *,
    rel: float = 1e-5,
) -> None:
    """Metrics whose names begin with one of `prefixes` are the same in every step, and each prefix
    is that of some metric."""
    assert len(found) == len(expected) > 0
    for mine, theirs in zip(found, expected, strict=True):
        numbers, others = (
            {name: number for name, number in row.items() if name.startswith(prefixes)}
            for row in (mine, theirs)
        )
        assert numbers == pytest.approx(others, rel=rel, abs=1e-5)
    names = {name for row in expected for name in row}
    unknown = [prefix for prefix in prefixes if not any(n.startswith(prefix) for n in names)]
    assert not unknown, f"no metric begins with {unknown}; there are {sorted(names)}"
