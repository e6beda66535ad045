"""What transformers' arguments of `generate` become for vLLM."""

import numpy as np
import pytest
import torch

from verl_hpc.api.vllm import Generation
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Sampling


def test_what_is_honoured():
    for given, expected in (
        ({}, Sampling(20)),
        ({"max_new_tokens": 4}, Sampling(4)),
        ({"do_sample": False, "temperature": 0.7}, Sampling(20, 0.0)),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, Sampling(20, 0.7, 0.9)),
        ({"top_k": np.int64(50), "temperature": None}, Sampling(20, top_k=50)),
    ):
        assert Generation.of(given).sampling == expected


def test_defaults_are_not_those_of_transformers(hf_model):
    """docs/python_api.md says so: these are what its table of differences names."""
    ours = Generation.of({})
    assert (ours.do_sample, ours.top_k, ours.temperature, ours.pad_token_id) == (True, -1, 1.0, 0)
    ids = torch.tensor([[5, 6, 7]])
    alone, greedy = hf_model.generate(ids), hf_model.generate(ids, do_sample=False)
    assert alone.tolist() == greedy.tolist() and alone.shape[1] <= 3 + ours.max_new_tokens
    assert hf_model._prepare_generation_config(None)[0].top_k == 50


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": -1}, "temperature = -1: .*greater than or equal to 0"),
        ({"temperature": 5}, "temperature = 5: .*less than or equal to 2"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": 1.5}, "top_k = 1.5"),
        ({"do_sample": "no"}, "do_sample = 'no'"),
        ({"num_beams": 2}, "num_beams: no such setting"),
        ({"max_new_token": 3}, "max_new_token: no such setting; did you mean max_new_tokens"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(ConfigError, match=rf"^vLLMActor\.generate:\s+{words}"):
        Generation.of(given)
