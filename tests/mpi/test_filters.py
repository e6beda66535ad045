"""Sampling filters: both engines honour them, and report log-probs of the whole distribution."""

import json
import shutil
from contextlib import closing

import pytest
import torch
from transformers import AutoTokenizer

from tests.generated import generated
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import loaded_rollout
from tests.mpi.test_rollout import LIMITS, PROMPTS, check_log_probs
from verl_hpc.rollout.protocol import Sampling

pytestmark = pytest.mark.world(2)

SEEDS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def directory(here, tiny_model, shared_directory):
    """A model whose generation_config.json names another end token than its config.json."""
    directory, plain = shared_directory / "with-ends", tiny_model("qwen2", True, **VLLM_HEADS)
    if here.world.rank == 0:
        shutil.copytree(plain, directory)
        ends = json.dumps({"eos_token_id": [7, 9]})
        (directory / "generation_config.json").write_text(ends)
    here.control.barrier()
    return directory


@pytest.fixture(scope="module", params=["vllm", "hf"])
def engine(request, here, directory):
    config = LIMITS.model_copy(update={"top_k": 20, "engine": request.param})
    with closing(loaded_rollout(here, directory, ((0,), (1,)), config)) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "filters",
    [{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.3}, {"repetition_penalty": 1.4}],
    ids=lambda filters: next(iter(filters)),
)
def test_log_probs_are_of_the_whole_distribution_untempered(
    engine, reference, directory, temperature, filters
):
    sampling = Sampling(max_tokens=10, temperature=temperature, **filters)
    responses = generated(engine, PROMPTS, sampling, SEEDS)
    for prompt, response in zip(PROMPTS, responses, strict=True):
        check_log_probs(reference(directory).model, prompt, response, 1.0)


@pytest.mark.parametrize(
    "filters", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=lambda f: next(iter(f))
)
def test_the_narrowest_filter_leaves_the_likeliest_token(engine, filters):
    greedy = generated(engine, PROMPTS, Sampling(max_tokens=10, temperature=0.0), SEEDS)
    sampling = Sampling(max_tokens=10, temperature=1.5, **filters)
    narrow = generated(engine, PROMPTS, sampling, SEEDS)
    assert [r.tokens for r in narrow] == [r.tokens for r in greedy]


def test_a_repetition_penalty_counts_the_prompt_and_the_response(engine, reference, directory):
    model = reference(directory).model
    sampling = Sampling(max_tokens=10, top_k=1, repetition_penalty=1.5)
    for prompt, response in zip(PROMPTS, generated(engine, PROMPTS, sampling, SEEDS), strict=True):
        text = list(prompt)
        for token in response.tokens:
            with torch.no_grad():
                logits = model(torch.tensor([text])).logits[0, -1]
            seen = torch.tensor(sorted(set(text)))
            said = logits[seen]
            logits[seen] = torch.where(said > 0, said / 1.5, said * 1.5)
            assert token == int(logits.argmax())
            text.append(token)


def test_every_end_token_ends_a_response(engine, directory):
    """Those of generation_config.json, and the tokenizer's."""
    own = AutoTokenizer.from_pretrained(directory).eos_token_id
    sampling = Sampling(max_tokens=32, temperature=2.0)
    responses = generated(engine, [PROMPTS[0]] * 64, sampling, range(64))
    last = {r.tokens[-1] for r in responses if r.finish_reason == "stop"}
    assert last == {7, 9, own}
    for response in responses:
        assert not {7, 9, own} & set(response.tokens[:-1])
