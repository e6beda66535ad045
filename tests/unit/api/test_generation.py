"""What transformers' arguments of `generate` become for vLLM."""

import numpy as np
import pytest
import torch

from verl_hpc.api.vllm import Generation
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Sampling


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Sampling(20)),
        ({"max_new_tokens": 4, "max_length": 5}, Sampling(4)),
        ({"max_length": 12}, Sampling(2)),
        ({"do_sample": False, "temperature": 0.7}, Sampling(20, 0.0)),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, Sampling(20, 0.7, 0.9)),
        ({"top_k": 50, "min_p": 0.1}, Sampling(20, top_k=50, min_p=0.1)),
        ({"repetition_penalty": 1.2}, Sampling(20, repetition_penalty=1.2)),
        ({"stop_strings": "x"}, Sampling(20, stop=("x",))),
        ({"stop_strings": ["x", "y"]}, Sampling(20, stop=("x", "y"))),
        ({"temperature": None, "num_beams": 1, "use_cache": True}, Sampling(20)),
        ({"num_return_sequences": 1, "return_dict_in_generate": False}, Sampling(20)),
    ],
)
def test_what_is_honoured(given, expected):
    assert Generation.of(given).sampling(longest=10) == expected


def test_defaults_are_not_those_of_transformers(hf_model):
    """docs/python_api.md says so: these are what its table of differences names."""
    ours = Generation.of({})
    assert (ours.do_sample, ours.top_k, ours.temperature, ours.pad_token_id) == (True, -1, 1.0, 0)
    ids = torch.tensor([[5, 6, 7]])
    alone, greedy = hf_model.generate(ids), hf_model.generate(ids, do_sample=False)
    assert alone.tolist() == greedy.tolist() and alone.shape[1] <= 3 + ours.sampling(3).max_tokens
    assert hf_model._prepare_generation_config(None)[0].top_k == 50


def test_tokens_that_end_and_pad():
    assert Generation.of({}).ends is None and Generation.of({}).pad_token_id == 0
    assert Generation.of({"eos_token_id": 3}).ends == [3]
    assert Generation.of({"eos_token_id": []}).ends == []
    assert Generation.of({"eos_token_id": [3, 4], "pad_token_id": 5}).ends == [3, 4]
    ids = [np.int64(3), np.int64(4)]
    for several in (ids, tuple(ids), np.array([3, 4]), torch.tensor([3, 4])):
        assert Generation.of({"eos_token_id": several}).ends == [3, 4]
    assert Generation.of({"eos_token_id": torch.tensor(3), "top_k": np.int64(2)}).ends == [3]
    assert Generation.of({"num_beams": torch.tensor(1)}) == Generation()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": -1}, "temperature = -1: .*greater than or equal to 0"),
        ({"temperature": 5}, "temperature = 5: .*less than or equal to 2"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": 1.5}, "top_k = 1.5"),
        ({"do_sample": "no"}, "do_sample = 'no'"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"stop_strings": ["x", ""]}, "stop_strings"),
        ({"num_beams": torch.tensor([1, 2])}, "num_beams = .* is not honoured"),
        ({"num_return_sequences": 2}, "num_return_sequences = 2 is not honoured: .*RolloutManager"),
        ({"use_cache": False}, "use_cache = False is not honoured"),
        ({"max_new_token": 3}, "max_new_token: no such setting; did you mean max_new_tokens"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(ConfigError, match=rf"^vLLMActor\.generate:\s+{words}"):
        Generation.of(given)


def test_a_length_that_leaves_no_room():
    with pytest.raises(ConfigError, match="max_length = 10, and a prompt has 10 tokens"):
        Generation.of({"max_length": 10}).sampling(longest=10)
