"""Three tasks of one tiny actor: vowels by PPO, letters by their reward in the prompt, and animals
that a constraint leaves."""

import json
from string import ascii_letters

import pytest

import verl_hpc
from tests.unit.api.conftest import SIZES, hf_model, model_dir, one_thread, tokenizer  # noqa: F401
from verl_hpc.testing.tiny import make_tiny_model

PROMPTS = {"vowels": ["vvvvvv", "wwwwww"], "letters": ["SSSSSS", "TTTTTT"], "pick": ["pick: "]}
ANIMALS = ["cat", "dog", "emu"]


def share_of_vowels(response, reference):
    return sum(letter in "aeiou" for letter in response) / 6


def share_of_letters(response, reference):
    return sum(letter in ascii_letters for letter in response) / 6


def likes_emus(response, reference):
    return float(response == "emu")


REWARDS = {"vowels": share_of_vowels, "letters": share_of_letters, "pick": likes_emus}
TASKS = {
    "vowels": {"type": "ppo", "lr": 3e-2, "kl_coef": 0.01, "max_response_length": 6},
    "letters": {
        "type": "reward_conditioned",
        "lr": 3e-2,
        "kl_coef": 0.01,
        "max_response_length": 6,
        "condition": {"text": "{reward} ", "levels": 3},
    },
    "pick": {
        "type": "constrained_decoding",
        "lr": 1e-2,
        "kl_coef": 0.01,
        "max_response_length": 6,
        "constraint": {"choices": ANIMALS},
    },
}


LEARNING = {
    "vowels": {"lr": 1e-2, "num_samples": 4, "batch_size": 16},
    "letters": {
        "lr": 1e-2,
        "num_samples": 8,
        "batch_size": 16,
        "condition": {"text": "{reward} ", "levels": 5},
    },
    "pick": {"lr": 3e-3},
}
"""Settings with which all learn within 30 steps on a model whose prompts differ; the rewards agree
where the tasks meet, since so small a model hardly tells their prompts apart."""


@pytest.fixture(scope="session")
def noisy_dir(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("noisy"), "qwen2", noise=0.1, **SIZES)


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    for name, prompts in PROMPTS.items():
        lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


@pytest.fixture
def make_trainer(model_dir, rows, tmp_path):  # noqa: F811
    def make(tasks=("vowels", "letters", "pick"), critic=False, batch_size=24, **changes):
        path = changes.pop("path", model_dir)
        actor = verl_hpc.HfModelAdapter(str(path), changes.pop("dtype", "float32"))
        value = verl_hpc.CriticModel(actor.hf_model) if critic else None
        edits = {name: changes.pop(name, {}) for name in tasks}
        weights = changes.pop("weights", dict.fromkeys(tasks, 1.0))
        given = {"rewards": {name: REWARDS[name] for name in tasks}}
        given |= {
            k: changes.pop(k) for k in ("rewards", "constraints", "namespace") if k in changes
        }
        config = {
            "output_dir": str(tmp_path),
            "tasks": {name: TASKS[name] | edits[name] for name in tasks},
            **changes,
        }
        loader = verl_hpc.get_dataloader(rows, weights, batch_size)
        return verl_hpc.Trainer(actor, value, loader, config, **given)

    return make
