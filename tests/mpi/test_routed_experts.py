"""vLLM's engine on CPU ranks says which experts each token was routed to: those that transformers
chooses for the same tokens. Tokens whose choice is a matter of rounding are left out."""

import pytest
import torch

from tests.generated import generated
from tests.mpi.engines_for_tests import loaded_rollout
from tests.mpi.forced_experts import gates_of, routed_by
from tests.mpi.mixtures import VLLM_SIZES, mixture
from tests.slow import all_slow
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.rollout.protocol import NOT_BEGUN, Sampling

pytestmark = pytest.mark.world(1, 2)
LIMITS = {"max_prompt_tokens": 64, "max_response_tokens": 48}
PROMPTS = [list(range(40 + n, 40 + 3 * n)) for n in (3, 9, 4, 12, 20, 9)]
SEEDS, OTHER_SEEDS = list(range(6)), list(range(10, 16))
SAMPLING = Sampling(max_tokens=40)
TIE = 1e-4
"""Probabilities that are no further apart may be in either order."""


@pytest.fixture
def build(here, tiny_model):
    """`build(model, **changes)` gives an engine over all ranks, and its model's directory."""
    built = []

    def make(model, **changes):
        directory, _ = mixture(tiny_model, model, **VLLM_SIZES)
        config = RolloutConfig(**{"kv_cache_gib": 0.03, **LIMITS, **changes})
        replicas = (tuple(range(here.world.size)),)
        engine = loaded_rollout(here, directory, replicas, config, keeps_experts=True)
        built.append(engine)
        return engine, directory

    yield make
    for engine in built:
        engine.close()


def check(reference, sequence, rows) -> int:
    """The experts of (L,) tokens but the last; how many of tokens x layers were compared."""
    assert rows.dtype == "uint8" and rows.shape == (len(sequence) - 1, 2, 2), rows.shape
    routed = torch.from_numpy(rows).long()
    scores: dict[int, torch.Tensor] = {}
    with torch.no_grad(), routed_by(reference, 2) as router:
        forward = router.forward

        def listen(layer, gate, hidden):
            scores[layer], *others = forward(layer, gate, hidden)
            return scores[layer], *others

        router.forward = listen
        reference.log_probs(sequence)
    compared, close = 0, torch.zeros(len(rows), dtype=torch.bool)
    for layer in range(len(gates_of(reference))):
        best = scores[layer][:-1].topk(3, dim=-1)
        # What a token reads of the tokens before it may have been a matter of rounding, too.
        close |= (best.values[:, 1] - best.values[:, 2] < TIE).cumsum(0) > 0
        same = (routed[:, layer].sort(-1).values == best.indices[:, :2].sort(-1).values).all(-1)
        assert same[~close].all()
        compared += int((~close).sum())
    return compared


def check_all(reference, prompts, responses) -> None:
    compared = total = 0
    for prompt, response in zip(prompts, responses, strict=True):
        sequence = torch.tensor([*prompt, *response.tokens])
        compared += check(reference, sequence, response.experts)
        total += 2 * (len(sequence) - 1)
    assert compared > total / 3


@pytest.mark.parametrize("model", ["raw", *all_slow("mixtral")])
def test_experts_are_those_that_transformers_chooses(build, reference, model):
    """Requests of one batch have different lengths."""
    engine, directory = build(model)
    responses = generated(engine, PROMPTS, SAMPLING, SEEDS)
    check_all(reference(directory), PROMPTS, responses)
    # Equal prompts, which a cache of prefixes would compute once.
    alike = [PROMPTS[4]] * 6
    check_all(reference(directory), alike, generated(engine, alike, SAMPLING, SEEDS))


def test_requests_that_begin_when_others_have_ended(build, reference):
    engine, directory = build("normalised", max_num_seqs=2)
    check_all(reference(directory), PROMPTS, generated(engine, PROMPTS, SAMPLING, SEEDS))


def test_requests_that_are_preempted_and_computed_again(build, reference, monkeypatch):
    """The cache holds 8 blocks of 32 tokens, and 6 requests grow to two or three each."""
    engine, directory = build("normalised", engine_options={"num_gpu_blocks_override": 9})
    scheduler, preempted = engine._core.scheduler, []
    preempt = scheduler._preempt_request

    def count(request, *arguments, **others):
        preempted.append(request.request_id)
        return preempt(request, *arguments, **others)

    monkeypatch.setattr(scheduler, "_preempt_request", count)
    responses = generated(engine, PROMPTS, SAMPLING, SEEDS)
    assert preempted
    check_all(reference(directory), PROMPTS, responses)


def test_a_continued_response_keeps_the_experts_of_each_part(build, here, reference):
    engine, directory = build("normalised")
    asked = iter(range(1, 16))
    first = generated(engine, PROMPTS, SAMPLING, SEEDS, until=lambda _: next(asked) == 15)
    begun = [r if r.finish_reason == "unfinished" else NOT_BEGUN for r in first]
    assert any(r.tokens for r in begun)
    check_all(reference(directory), PROMPTS, first)
    engine.begin_update()
    for name, weight in engine.weights.items():
        if name.endswith("gate.weight"):
            weight *= -1.0
    engine.finish_update()
    second = generated(engine, PROMPTS, SAMPLING, OTHER_SEEDS, prefixes=begun)
    for prompt, prefix, response in zip(PROMPTS, begun, second, strict=True):
        assert len(response.experts) == len(prompt) + len(response.tokens) - 1
        if not prefix.tokens:
            continue
        done = len(prefix.experts)
        assert (response.experts[:done] == prefix.experts).all()
        # The first router sees embeddings and attention alone: its least likely experts now.
        sequence = torch.tensor([*prompt, *response.tokens])
        with torch.no_grad(), routed_by(reference(directory), 2) as router:
            reference(directory).log_probs(sequence)
        old = router.chosen[0][done:-1].sort(-1).values
        new = torch.from_numpy(response.experts[done:, 0]).long().sort(-1).values
        assert (old != new).any(-1).float().mean() > 0.9
