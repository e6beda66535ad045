"""A tiny model and task for whole jobs."""

import pytest

from tests.jobs.launch import write_problems
from tests.pushgateway import pushgateway
from verl_hpc.testing.tiny import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    return make_tiny_model(
        directory,
        "qwen2",
        tied=True,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=2,
    )


@pytest.fixture(scope="module")
def gateway():
    """A real Pushgateway's address."""
    with pushgateway() as address:
        yield address


# An untrained model answers nothing right; this gives it something to learn from.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return (sum(map(ord, solution_str)) % 5) / 4
"""


@pytest.fixture
def tree(model, tmp_path):
    """A PPO run of four steps on two ranks; tests change what they are about."""
    return ppo(model, tmp_path)


VLLM = {"engine": "vllm", "kv_cache_gib": 0.05}
"""Changes of `rollout` for tests that are also about vLLM."""


def ppo(model, directory):
    reward = directory / "reward.py"
    reward.write_text(REWARD)
    return {
        "name": "run",
        "recipe": "rl",
        "steps": 4,
        "directory": str(directory),
        "model": {"path": str(model), "dtype": "float32"},
        "parallel": {"tensor_parallel": 2},
        "optimizer": {"lr": 1e-3},
        "roles": {"critic": {"optimizer": {"lr": 1e-3}}},
        "algorithm": {
            "advantage": {"name": "gae"},
            "kl": {"placement": "reward", "controller": "adaptive", "horizon": 10},
        },
        "batch": {"size": 4, "mini_batches": 2},
        # vLLM takes several seconds to start: only tests that are about its work have it.
        "rollout": {
            "engine": "hf",
            "num_samples": 2,
            "max_prompt_tokens": 80,
            "max_response_tokens": 6,
        },
        "data": {"train": write_problems(directory)},
        "reward": {"function": f"{reward}:compute_score"},
        "checkpoint": {"every": 1, "keep": 9},
        "metrics": {"terminal": "off", "report": False},
    }
