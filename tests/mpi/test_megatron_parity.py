"""Megatron-core on every layout computes what transformers computes, within 1e-5 in float32.

Loss, log-probs, entropy, every shard of every gradient, and the gradient norm; Llama- and
Qwen2-style models, tied and untied; sequence parallelism and virtual stages.
"""

import pytest
import torch

from tests.mpi.engines_for_tests import (
    build_engine,
    held,
    layouts_of_world,
    responses,
    some_sequences,
)
from verl_hpc.layout.megatron import TrainLayout

TOLERANCE = 1e-5

LAYOUTS = {
    1: [dict()],
    2: [dict(tp=2), dict(tp=2, sp=True), dict(pp=2), dict(pp=2, vpp=2), dict(dp=2)],
    4: [
        dict(tp=2, pp=2),
        dict(tp=2, pp=2, sp=True),
        dict(tp=2, pp=2, vpp=2, sp=True),
        dict(tp=2, dp=2),
        dict(pp=2, dp=2, vpp=2),
        dict(tp=4),
    ],
}
MODELS = [("llama", False), ("llama", True), ("qwen2", False), ("qwen2", True), ("qwen3", True)]


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS)


@pytest.mark.world(*LAYOUTS)
@pytest.mark.parametrize("family, tied", MODELS)
def test_everything_equals_transformers(here, tiny_model, reference, sizes, family, tied):
    sizes = dict(sizes)
    sequence_parallel = sizes.pop("sp", False)
    layout = TrainLayout(**sizes)
    directory = tiny_model(family, tied)
    engine = build_engine(here, directory, layout, sequence_parallel=sequence_parallel)
    expected = reference(directory)

    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(4, vocab_size) + responses(2, 4, vocab_size)
    dp_index = layout.grid.coordinates(here.world.rank)["dp"]
    mine = sequences[dp_index :: layout.dp]
    assert sum(engine._passes.plan(mine).shared) > 0
    outputs = engine.infer(mine)
    for sequence, output in zip(mine, outputs, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(
                output.log_probs, expected.log_probs(sequence), atol=TOLERANCE, rtol=0
            )
            torch.testing.assert_close(
                output.entropy, expected.entropy(sequence), atol=TOLERANCE, rtol=0
            )

    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    expected.model.zero_grad()
    loss.backward()
    gradients = {n: p.grad for n, p in expected.model.named_parameters()}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm().item()

    seen: dict[str, torch.Tensor] = {}
    step = engine.optimizer.step

    def spy() -> float:
        for index, chunk in enumerate(engine._chunks):
            for name, parameter in chunk.named_parameters():
                local = f"chunk{index}.{name.replace('module.', '')}"
                seen[local] = parameter.main_grad.clone()
        return step()

    engine.optimizer.step = spy
    metrics = engine.update(
        mine,
        lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {}),
    )
    assert metrics["loss"] == pytest.approx(loss.item(), abs=TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
    if layout.dp == 1:  # with more, each rank holds only its share of the reduced gradients
        for region in engine.shard_map.held_by(here.world.rank):
            expected_shard = gradients[region.tensor][region.box.slices]
            torch.testing.assert_close(held(seen, region), expected_shard, atol=TOLERANCE, rtol=0)
