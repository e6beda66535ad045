"""What a language model gives besides log-probs and entropy, on ranks, against transformers."""

import pytest
import torch

from tests.mpi.engines_for_tests import engine_of_sizes, layouts, same, some_sequences
from tests.mpi.parity import once, replica_share
from verl_hpc.engines.protocol import OutputOptions

pytestmark = pytest.mark.world(4)

TEMPERATURE, TOP = 0.7, 5
LAYOUTS = layouts("tp2-pp2 tp4 pp2-dp2 dp4-cp2 tp2-dp2-cp2-sp-full dp4-fsdp")


def distributions(reference, sequence):
    """(L - 1, vocabulary) log-probs, differentiable."""
    return (reference.model(sequence[None]).logits[0, :-1] / TEMPERATURE).log_softmax(-1)


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_they_equal_transformers(here, tiny_model, reference, sizes):
    directory = tiny_model("llama", False)
    engine = engine_of_sizes(here, directory, sizes)
    sequences = some_sequences(6, engine.arch.vocab_size)
    # Some are asked for twice, and some are the sampled token itself.
    candidates = [torch.stack([s[1:], s[:-1], s[:-1]], dim=1) for s in sequences]

    def loss(log_probs):
        return -(log_probs * torch.tensor([1.0, -0.5, 0.3])).sum() / 100

    def by_transformers():
        model = reference(directory)
        distributions_of = [distributions(model, s) for s in sequences]
        total = sum(
            loss(log_p.gather(-1, tokens))
            for log_p, tokens in zip(distributions_of, candidates, strict=True)
        )
        model.model.zero_grad()
        total.backward()
        norm = torch.stack([p.grad.norm() for p in model.model.parameters()]).norm()
        return [log_p.detach() for log_p in distributions_of], total.item(), norm.item()

    expected, total, norm = once(here, by_transformers)
    share = replica_share(engine.layout)
    wanted = OutputOptions(True, True, TOP, candidates[share])
    outputs = engine.infer(sequences[share], TEMPERATURE, wanted)
    given = zip(outputs, expected[share], sequences[share], candidates[share], strict=True)
    for output, log_p, sequence, tokens in given:
        top = log_p.topk(TOP)
        assert torch.equal(output.top_tokens, top.indices)
        untempered = (log_p * TEMPERATURE).log_softmax(-1).gather(-1, sequence[1:, None])[:, 0]
        expected_of = {
            "top_log_probs": top.values,
            "candidate_log_probs": log_p.gather(-1, tokens),
            "sum_p_squared": log_p.exp().square().sum(-1),
            "untempered": untempered,
        }
        same({name: getattr(output, name) for name in expected_of}, expected_of, 1e-5)
        torch.testing.assert_close(output.log_probs, output.candidate_log_probs[:, 0])
    for output in engine.infer(sequences[share], TEMPERATURE):
        there = {name for name, value in vars(output).items() if value is not None}
        assert there == {"log_probs", "entropy"}

    metrics = engine.update(
        sequences[share],
        lambda _, found: (sum(loss(o.candidate_log_probs) for o in found), {}),
        TEMPERATURE,
        wanted=OutputOptions(candidates=candidates[share]),
    )
    assert metrics["loss"] == pytest.approx(total, rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
