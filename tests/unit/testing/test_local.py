"""The engines that other tests rest on, against their definitions and torch's own optimizer."""

import pytest
import torch

from tests.generated import generated
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.protocol import OutputOptions
from verl_hpc.errors import DataError, TrainingError
from verl_hpc.rollout.protocol import NOT_BEGUN, Response, Sampling
from verl_hpc.testing.local import LocalControl, LocalEngine
from verl_hpc.testing.local_rollout import LocalRollout

TOKENS = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6])]


def test_a_control_plane_of_one_rank_hears_itself():
    control = LocalControl()
    value = {"a": [1, 2.5, None]}
    assert control.allgather(value) == control.gather(value) == [value]
    assert control.broadcast(value) == value
    assert control.any(True) and not control.any(False)
    assert control.split(3).allgather("x") == ["x"]
    control.barrier()
    with pytest.raises(DataError) as caught:
        control.together(lambda: (_ for _ in ()).throw(DataError("no rows")))
    assert caught.value.agreed


def test_further_outputs_are_of_one_distribution():
    engine = LocalEngine()
    every = torch.arange(12).repeat(3, 1)
    wanted = OutputOptions(sum_p_squared=True, top_k=12, candidates=[every, every[:1]])
    for output, tokens in zip(engine.infer(TOKENS, 0.5, wanted), TOKENS, strict=True):
        p = output.candidate_log_probs.exp()
        assert torch.allclose(p.sum(-1), torch.ones(len(tokens) - 1))
        assert torch.allclose(output.sum_p_squared, p.square().sum(-1))
        assert torch.equal(output.top_tokens, p.argsort(-1, descending=True))
        sorted_p = output.top_log_probs.exp()
        assert torch.allclose(sorted_p, p.gather(-1, output.top_tokens))
        mine = output.candidate_log_probs.gather(-1, tokens[1:, None])[:, 0]
        assert torch.allclose(mine, output.log_probs)


def test_an_update_is_adamws():
    settings = OptimizerConfig(lr=1e-2, weight_decay=0.1, clip_grad=0.5)
    engine = LocalEngine(optimizer=settings)
    copies = [w.clone().requires_grad_() for w in engine.weights.values()]
    betas = settings.beta1, settings.beta2
    adam = torch.optim.AdamW(copies, lr=1e-2, betas=betas, eps=1e-8, weight_decay=0.1)

    def loss(indices, outputs):
        return -sum(o.log_probs.sum() for o in outputs), {"count": float(len(indices))}

    for _ in range(3):
        metrics = engine.update(TOKENS, loss)
        for copy, gradient in zip(copies, engine.gradients.values(), strict=True):
            copy.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(copies, 0.5)
        adam.step()
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        assert (metrics["count"], metrics["lr"]) == (2.0, 1e-2)
        for copy, weight in zip(copies, engine.weights.values(), strict=True):
            torch.testing.assert_close(copy.detach(), weight, atol=1e-6, rtol=1e-5)
    assert engine.counters() == {"num_steps": 3}


def test_a_gradient_that_is_not_finite_changes_nothing():
    engine = LocalEngine(optimizer=OptimizerConfig())
    before = [w.clone() for w in engine.weights.values()]
    with pytest.raises(TrainingError):
        engine.update(TOKENS, lambda i, o: (o[0].log_probs.sum() * torch.inf, {}))
    assert all(torch.equal(a, b) for a, b in zip(before, engine.weights.values(), strict=True))


def test_responses_follow_the_weights_and_the_seeds():
    prompts, seeds = [[1, 2], [3]], [7, 8]
    sampling = Sampling(6, temperature=0.9)
    first = generated(LocalRollout(), prompts, sampling, seeds)
    assert first == generated(LocalRollout(), prompts, sampling, seeds)
    assert first[1:] == generated(LocalRollout(), prompts[1:], sampling, seeds[1:])
    assert first != generated(LocalRollout(), prompts, sampling, [9, 10])
    assert first != generated(LocalRollout(seed=1), prompts, sampling, seeds)
    for response in first:
        assert (response.finish_reason == "stop") == (response.tokens[-1] == 0)
        assert response.finish_reason == "stop" or len(response.tokens) == 6
        assert 0 not in response.tokens[:-1]


def test_who_is_ended_gives_what_is_finished():
    engine, sampling = LocalRollout(), Sampling(4)
    prompts, seeds = [[1], [2], [3]], [1, 2, 3]
    whole = generated(engine, prompts, sampling, seeds)
    asked = iter([False, True])
    responses = generated(engine, prompts, sampling, seeds, lambda: next(asked))
    assert responses == [whole[0], NOT_BEGUN, NOT_BEGUN]
    responses = generated(engine, prompts, sampling, seeds, until=lambda done: len(done) == 2)
    assert responses == [*whole[:2], NOT_BEGUN]


def test_a_response_goes_on_behind_its_prefix():
    prefix = Response((5, 6), (-0.1, -0.2), "unfinished")
    (found,) = generated(LocalRollout(), [[1]], Sampling(4), [3], prefixes=[prefix])
    assert found.tokens[:2] == (5, 6) and found.log_probs[:2] == (-0.1, -0.2)
    assert 2 < len(found.tokens) <= 4 and found.finish_reason != "unfinished"
