"""Three tasks of one tiny actor: vowels by PPO, digits by their reward in the prompt, and a choice
of animals that a constraint leaves."""

import json

import pytest

import verl_hpc
from tests.unit.api.conftest import hf_model, model_dir, one_thread, tokenizer  # noqa: F401

PROMPTS = {"vowels": ["say a", "say e"], "digits": ["count 1", "count 2"], "pick": ["pick: "]}
ANIMALS = ["cat", "dog", "emu"]


def share_of_vowels(response, reference):
    return sum(letter in "aeiou" for letter in response) / 6


def share_of_digits(response, reference):
    return sum(letter.isdigit() for letter in response) / 6


def likes_emus(response, reference):
    return float(response == "emu")


REWARDS = {"vowels": share_of_vowels, "digits": share_of_digits, "pick": likes_emus}
TASKS = {
    "vowels": {"type": "ppo", "lr": 3e-2, "kl_coef": 0.01, "max_response_length": 6},
    "digits": {
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


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    for name, prompts in PROMPTS.items():
        lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


@pytest.fixture
def make_trainer(model_dir, rows, tmp_path):  # noqa: F811
    def make(tasks=("vowels", "digits", "pick"), critic=False, batch_size=24, **changes):
        actor = verl_hpc.HfModelAdapter(str(model_dir), changes.pop("dtype", "float32"))
        value = verl_hpc.CriticModel(actor.hf_model) if critic else None
        edits = {name: changes.pop(name, {}) for name in tasks}
        given = {"rewards": {name: REWARDS[name] for name in tasks}}
        given |= {k: changes.pop(k) for k in ("rewards", "constraints") if k in changes}
        config = {
            "output_dir": str(tmp_path),
            "tasks": {name: TASKS[name] | edits[name] for name in tasks},
            **changes,
        }
        loader = verl_hpc.get_dataloader(rows, dict.fromkeys(tasks, 1.0), batch_size)
        return verl_hpc.Trainer(actor, value, loader, config, **given)

    return make
