"""A tiny model of transformers, and trainers on it that learn within a second or two."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import verl_hpc
from verl_hpc.testing.tiny import make_tiny_model

SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny products are slower on several threads, above all where other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), "qwen2", **SIZES)


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture
def hf_model(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir)


def share_of_vowels(response, reference):
    """Hardly anything at the start, 1 where a response is nothing but vowels."""
    return sum(letter in "aeiou" for letter in response) / 6


FAST = {"lr": 4e-2, "critic_lr": 1e-2, "kl_coef": 0.01, "max_response_length": 6, "seed": 1}


@pytest.fixture
def make_trainer(hf_model, tokenizer):
    def make(critic=False, **changes):
        named = ("reward_fn", "namespace", "data_provider", "actor_model")
        given = {k: changes.pop(k) for k in named if k in changes}
        given = {"reward_fn": share_of_vowels, **given}
        actor = given.pop("actor_model", None) or verl_hpc.ActorModel(hf_model)
        value = verl_hpc.CriticModel(hf_model) if critic else None
        return verl_hpc.PPOTrainer(actor, value, tokenizer, FAST | changes, **given)

    return make


@pytest.fixture
def prompts(tokenizer):
    return tokenizer(["abc", "xy z"] * 8).input_ids
