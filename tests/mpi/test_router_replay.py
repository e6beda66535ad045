"""Experts that were chosen elsewhere are what a training engine computes with: log-probs and
gradients are those of transformers forced to the same experts, within 1e-5 in float32."""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, layouts_of_world, responses, some_sequences
from tests.mpi.forced_experts import choices, routed_by, told
from tests.mpi.test_moe_parity import MODELS, by_checkpoint_name, local_gradients, named_as
from verl_hpc.engines.protocol import Wanted
from verl_hpc.layout.megatron import TrainLayout

TOLERANCE = 1e-5
K = 2
FULL = {"recompute": "full"}
LAYOUTS = {
    1: [{}, FULL, {"recompute": "selective"}],
    2: [
        {"dp": 2},
        {"dp": 2, "ep": 2},
        {"tp": 2},
        {"tp": 2, "ep": 2, **FULL},
        {"tp": 2, "etp": 2},
        {"pp": 2},
        {"pp": 2, **FULL},
        {"pp": 2, "vpp": 2},
        {"dp": 2, "cp": 2},
    ],
    4: [
        {"tp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "pp": 2, "ep": 2, **FULL},
        {"pp": 2, "vpp": 2, "dp": 2, "ep": 2, **FULL},
        {"tp": 2, "dp": 2, "cp": 2, "ep": 2},
    ],
}


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS)


def built(here, tiny_model, sizes, model):
    """An engine on these sizes, its layout, and the model's directory."""
    sizes = dict(sizes)
    recompute = {name: sizes.pop(name) for name in ("recompute",) if name in sizes}
    layout = TrainLayout(**sizes)
    family, fields = MODELS[model]
    directory = tiny_model(family, num_hidden_layers=4, num_key_value_heads=4, **fields)
    engine = build_engine(
        here, directory, layout, sequence_parallel=layout.tp > 1, max_tokens=64, **recompute
    )
    return engine, layout, directory


@pytest.mark.world(*LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_replayed_experts_decide_log_probs_and_gradients(here, tiny_model, reference, sizes, model):
    engine, layout, directory = built(here, tiny_model, sizes, model)
    expected, vocab_size = reference(directory), engine.arch.vocab_size
    # Neighbours that begin alike share tokens of a row.
    sequences = some_sequences(5, vocab_size) + responses(2, 4, vocab_size)
    experts = choices(expected, sequences, K, noise=0.3)
    replica = layout.data_grid.coordinates(here.world.rank)["dp"]
    mine = slice(replica, None, layout.num_replicas)
    wanted = Wanted(experts=[e.flatten(1) for e in experts[mine]])

    replayed, free = (engine.infer(sequences[mine], 1.0, w) for w in (wanted, Wanted()))
    worst = 0.0
    num_tokens = sum(len(s) - 1 for s in sequences)
    expected.model.zero_grad()
    loss = 0.0
    with routed_by(expected, K) as router:
        found = []
        for sequence, chosen in zip(sequences, experts, strict=True):
            router.told = told(chosen)
            log_probs = expected.log_probs(sequence)
            part = -log_probs.sum() / num_tokens
            part.backward()
            loss += part.item()
            found.append(log_probs.detach())
    for output, without, log_probs in zip(replayed, free, found[mine], strict=True):
        torch.testing.assert_close(output.log_probs, log_probs, atol=TOLERANCE, rtol=0)
        worst = max(worst, (without.log_probs - log_probs).abs().max().item())
    assert worst > 100 * TOLERANCE

    family, _ = MODELS[model]
    named = {n: p.grad for n, p in expected.model.named_parameters()}
    norm = torch.stack([g.norm() for g in named.values()]).norm().item()
    gradients = local_gradients(engine, named_as(family, by_checkpoint_name(named)))
    seen: dict[str, torch.Tensor] = {}
    step = engine.optimizer.step

    def spy() -> float:
        for index, chunk in enumerate(engine._chunks):
            for name, parameter in chunk.named_parameters():
                local = f"chunk{index}.{name.replace('module.', '')}"
                seen[local] = parameter.main_grad.clone().view(-1)
        return step()

    engine.optimizer.step = spy
    metrics = engine.update(
        sequences[mine],
        lambda _, outputs: (-sum(o.log_probs.sum() for o in outputs) / num_tokens, {}),
        wanted=wanted,
    )
    assert metrics["loss"] == pytest.approx(loss, abs=TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
    assert 0 < metrics["router_disagreement"] < 1
    for one in engine.optimizer.owned_ranges():
        part = slice(one.start, one.stop)
        torch.testing.assert_close(
            seen[one.name][part], gradients[one.name][part], atol=TOLERANCE, rtol=0
        )


@pytest.mark.world(*LAYOUTS)
def test_the_share_of_tokens_that_would_go_elsewhere_is_counted(here, tiny_model, reference, sizes):
    engine, layout, directory = built(here, tiny_model, sizes, "normalised")
    expected = reference(directory)
    sequences = some_sequences(6, engine.arch.vocab_size)  # none of them begin alike
    own = choices(expected, sequences, K)
    replica = layout.data_grid.coordinates(here.world.rank)["dp"]
    mine = slice(replica, None, layout.num_replicas)

    def nothing(_, outputs):
        return sum(o.log_probs.sum() for o in outputs) * 0.0, {}

    def disagreement(experts) -> float:
        wanted = Wanted(experts=[e.flatten(1) for e in experts[mine]])
        return engine.update(sequences[mine], nothing, wanted=wanted)["router_disagreement"]

    assert "router_disagreement" not in engine.update(sequences[mine], nothing)
    assert disagreement(own) == 0.0
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
    assert differ > total / 8
    assert disagreement(first) == pytest.approx(differ / total, abs=1e-9)


@pytest.mark.world(2)
def test_a_replica_without_sequences_takes_part(here, tiny_model, reference):
    engine, _, directory = built(here, tiny_model, {"dp": 2, "ep": 2}, "normalised")
    sequences = some_sequences(2, engine.arch.vocab_size) if here.world.rank == 0 else []
    experts = choices(reference(directory), sequences, K, noise=0.3)
    wanted = Wanted(experts=[e.flatten(1) for e in experts])
    found = engine.infer(sequences, 1.0, wanted)
    with torch.no_grad(), routed_by(reference(directory), K) as router:
        for sequence, output, chosen in zip(sequences, found, experts, strict=True):
            router.told = told(chosen)
            expected = reference(directory).log_probs(sequence)
            torch.testing.assert_close(output.log_probs, expected, atol=TOLERANCE, rtol=0)
