"""Experts that were chosen elsewhere are what a training engine computes with: log-probs and
gradients are those of transformers forced to the same experts, within 1e-5 in float32."""

import pytest
import torch

from tests.mpi.engines_for_tests import layouts, layouts_of_world, responses, some_sequences
from tests.mpi.forced_experts import choices, routed_by, told
from tests.mpi.mixtures import MODELS, engine_on, mixture
from tests.mpi.parity import TOLERANCE, gradients_of, once, replica_share, update_equals
from verl_hpc.engines.protocol import OutputOptions

K = 2
LAYOUTS = {
    1: layouts("one full selective"),
    2: layouts("dp2 dp2-ep2 tp2 tp2-ep2-full tp2-etp2 pp2 pp2-full pp2-vpp2 dp2-cp2"),
    4: layouts("tp2-dp2-ep4 pp2-vpp2-dp2-ep2-full tp2-dp2-cp2-ep2"),
}
FURTHER = {4: layouts("tp2-pp2-ep2-full")}


def pytest_generate_tests(metafunc):
    often, further = LAYOUTS, FURTHER
    if "model" not in metafunc.fixturenames:  # only the last layout has all axes but pipelines
        often = {size: found[-1:] for size, found in LAYOUTS.items()}
        further = {size: found[:-1] for size, found in LAYOUTS.items()}
    layouts_of_world(metafunc, often, further, model=list(MODELS))


@pytest.mark.world(*LAYOUTS)
def test_replayed_experts_decide_log_probs_and_gradients(here, tiny_model, reference, sizes, model):
    directory, family = mixture(tiny_model, model)
    engine = engine_on(here, directory, sizes)
    vocab_size = engine.arch.vocab_size
    # Neighbours that begin alike share tokens of a row.
    sequences = some_sequences(5, vocab_size) + responses(2, 4, vocab_size)
    num_tokens = sum(len(s) - 1 for s in sequences)

    def by_transformers():
        expected, loss, log_probs_of = reference(directory), 0.0, []
        experts = choices(expected, sequences, K, noise=0.3)
        expected.model.zero_grad()
        with routed_by(expected, K) as router:
            for sequence, chosen in zip(sequences, experts, strict=True):
                router.told = told(chosen)
                log_probs = expected.log_probs(sequence)
                part = -log_probs.sum() / num_tokens
                part.backward()
                loss += part.item()
                log_probs_of.append(log_probs.detach())
        return experts, log_probs_of, loss, gradients_of(expected.model, family)

    experts, reference_log_probs, loss, gradients = once(here, by_transformers)
    mine = replica_share(engine.layout)
    wanted = OutputOptions(experts=[e.flatten(1) for e in experts[mine]])
    replayed, free = (engine.infer(sequences[mine], 1.0, w) for w in (wanted, OutputOptions()))
    worst = 0.0
    for output, without, log_probs in zip(replayed, free, reference_log_probs[mine], strict=True):
        torch.testing.assert_close(output.log_probs, log_probs, atol=TOLERANCE, rtol=0)
        worst = max(worst, (without.log_probs - log_probs).abs().max().item())
    assert worst > 100 * TOLERANCE

    def update() -> dict[str, float]:
        return engine.update(
            sequences[mine],
            lambda _, outputs: (-sum(o.log_probs.sum() for o in outputs) / num_tokens, {}),
            wanted=wanted,
        )

    metrics = update_equals(engine, update, gradients, loss)
    assert 0 < metrics["router_disagreement"] < 1


@pytest.mark.world(*LAYOUTS)
def test_the_share_of_tokens_that_would_go_elsewhere_is_counted(here, tiny_model, reference, sizes):
    directory, _ = mixture(tiny_model, "normalised")
    engine = engine_on(here, directory, sizes)
    sequences = some_sequences(6, engine.arch.vocab_size)  # none of them begin alike
    mine = replica_share(engine.layout)

    def by_transformers():
        """Its own choices, others, and the share of tokens that would not go to these others."""
        expected = reference(directory)
        own = choices(expected, sequences, K)
        # The order of a token's experts is no choice, and the first router sees what it saw.
        first = [e.flip(-1) for e in own]
        for rows in first:
            rows[::2, 0] = (rows[::2, 0] + 1) % 8
        with torch.no_grad(), routed_by(expected, K) as router:
            differ = total = 0
            for sequence, chosen in zip(sequences, first, strict=True):
                router.told = told(chosen)
                expected.log_probs(sequence)
                free = torch.stack([router.chosen[i] for i in range(4)], dim=1)[:-1]
                same = (free.sort(-1).values == chosen.long().sort(-1).values).all(-1)
                differ, total = differ + int((~same).sum()), total + same.numel()
        return own, first, differ / total

    def nothing(_, outputs):
        return sum(o.log_probs.sum() for o in outputs) * 0.0, {}

    def disagreement(experts) -> float:
        wanted = OutputOptions(experts=[e.flatten(1) for e in experts[mine]])
        return engine.update(sequences[mine], nothing, wanted=wanted)["router_disagreement"]

    own, first, share = once(here, by_transformers)
    assert "router_disagreement" not in engine.update(sequences[mine], nothing)
    assert disagreement(own) == 0.0
    assert share > 1 / 8
    assert disagreement(first) == pytest.approx(share, abs=1e-9)


@pytest.mark.world(2)
def test_a_replica_without_sequences_takes_part(here, tiny_model, reference):
    directory, _ = mixture(tiny_model, "normalised")
    engine = engine_on(here, directory, {"dp": 2, "ep": 2})
    sequences = some_sequences(2, engine.arch.vocab_size) if here.world.rank == 0 else []
    experts = choices(reference(directory), sequences, K, noise=0.3)
    wanted = OutputOptions(experts=[e.flatten(1) for e in experts])
    outputs = engine.infer(sequences, 1.0, wanted)
    with torch.no_grad(), routed_by(reference(directory), K) as router:
        for sequence, output, chosen in zip(sequences, outputs, experts, strict=True):
            router.told = told(chosen)
            expected = reference(directory).log_probs(sequence)
            torch.testing.assert_close(output.log_probs, expected, atol=TOLERANCE, rtol=0)
