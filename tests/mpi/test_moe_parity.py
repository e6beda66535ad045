"""Mixtures of experts on Megatron-core compute what transformers computes, within 1e-5 in float32.

Log-probs, entropy, loss, the gradient of every range that a rank's optimizer owns, and the gradient
norm; experts over tensor- and data-parallel ranks, whole and split, in pipelines, recomputed. With
--slow on every layout of 1 to 8 ranks.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product

import pytest
import torch

from tests.mpi.engines_for_tests import (
    build_engine,
    layouts_of_world,
    responses,
    some_sequences,
)
from verl_hpc.layout.megatron import TrainLayout

TOLERANCE = 1e-5
FULL = {"recompute": "full"}
LAYOUTS = {
    1: [{}, FULL],
    2: [
        {"dp": 2},
        {"dp": 2, "ep": 2},
        {"dp": 2, "etp": 2},
        {"dp": 2, "ep": 2, **FULL},
        {"tp": 2},
        {"tp": 2, "ep": 2},
        {"tp": 2, "etp": 2},
        {"pp": 2},
        {"pp": 2, "vpp": 2},
    ],
    4: [
        {"tp": 2, "dp": 2},
        {"tp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "dp": 2, "ep": 2},
        {"tp": 2, "dp": 2, "etp": 2},
        {"tp": 2, "dp": 2, "ep": 2, "etp": 2},
        {"dp": 4, "ep": 2, "etp": 2},
        {"dp": 4, "ep": 4},
        {"tp": 2, "pp": 2, "ep": 2},
        {"tp": 2, "pp": 2, "etp": 2, **FULL},
        {"pp": 2, "dp": 2, "ep": 2},
        {"pp": 2, "vpp": 2, "dp": 2, "ep": 2},
        {"tp": 4, "ep": 2},
    ],
    8: [
        {"tp": 2, "pp": 2, "dp": 2, "ep": 4},
        {"tp": 2, "pp": 2, "dp": 2, "ep": 2, "etp": 2},
        {"tp": 2, "dp": 4, "ep": 4, "etp": 2},
    ],
}
QWEN = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
MODELS = {
    "normalised": ("qwen3_moe", QWEN | {"norm_topk_prob": True}),
    "raw": ("qwen3_moe", QWEN | {"norm_topk_prob": False}),
    "mixtral": ("mixtral", {"num_local_experts": 8, "intermediate_size": 32}),
}


def grid(num_ranks: int) -> Iterator[dict[str, int]]:
    """All layouts of TP, PP and ETP to 2, DP and EP to 4, with what is recomputed in turn."""
    axes = (1, 2), (1, 2), (1, 2, 4), (1, 2, 4), (1, 2)
    for tp, pp, dp, ep, etp in product(*axes):
        if tp * pp * dp == num_ranks and tp * dp % (ep * etp) == 0:
            yield {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, LAYOUTS)
    if "every" in metafunc.fixturenames:
        from tests.mpi import plugin

        found = list(grid(plugin.session.world.size))
        recomputed = [sizes | (FULL if i % 3 == 0 else {}) for i, sizes in enumerate(found)]
        metafunc.parametrize("every", recomputed, ids=lambda s: "-".join(map(str, s.values())))


def by_checkpoint_name(gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers stacks experts, and their gate and up projections, in memory alone."""
    found = {}
    for name, gradient in gradients.items():
        fused = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up|down)_proj", name)
        for expert, one in enumerate(gradient) if fused else ():
            begin = f"{fused[1]}.{expert}"
            if fused[2] == "gate_up":
                gate, up = one.chunk(2)
                found |= {f"{begin}.gate_proj.weight": gate, f"{begin}.up_proj.weight": up}
            else:
                found[f"{begin}.down_proj.weight"] = one
        if not fused:
            found[name] = gradient
    return found


def named_as(family: str, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if family != "mixtral":
        return dict(gradients)
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    found = {}
    for name, gradient in gradients.items():
        name = name.replace(".mlp.", ".block_sparse_moe.")
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        found[name] = gradient
    return found


def local_gradients(engine, gradients) -> dict[str, torch.Tensor]:
    """What this rank's parameters' gradients are, flat."""
    found = {n: torch.zeros(w.numel()) for n, w in engine.weights.items()}
    for region in engine.shard_map.held_by(torch.distributed.get_rank()):
        window = found[region.view.name].as_strided(
            region.box.shape, region.view.strides, region.view.offset
        )
        window.copy_(gradients[region.tensor][region.box.slices])
    return found


@pytest.mark.world(*LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_everything_equals_transformers(here, tiny_model, reference, sizes, model):
    equals_transformers(here, tiny_model, reference, sizes, model)


@pytest.mark.slow
@pytest.mark.world(1, 2, 4, 8)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_equals_transformers(here, tiny_model, reference, every, model):
    equals_transformers(here, tiny_model, reference, every, model)


def equals_transformers(here, tiny_model, reference, sizes, model):
    sizes = dict(sizes)
    recompute = {name: sizes.pop(name) for name in ("recompute",) if name in sizes}
    layout = TrainLayout(**sizes)
    family, fields = MODELS[model]
    directory = tiny_model(family, num_hidden_layers=4, num_key_value_heads=4, **fields)
    engine = build_engine(
        here, directory, layout, sequence_parallel=layout.tp > 1, max_tokens=64, **recompute
    )
    expected = reference(directory)

    vocab_size = engine.arch.vocab_size
    sequences = some_sequences(5, vocab_size) + responses(2, 4, vocab_size)
    dp_index = layout.grid.coordinates(here.world.rank)["dp"]
    mine = sequences[dp_index :: layout.dp]
    for sequence, output in zip(mine, engine.infer(mine), strict=True):
        with torch.no_grad():
            log_probs, entropy = expected.log_probs(sequence), expected.entropy(sequence)
        torch.testing.assert_close(output.log_probs, log_probs, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(output.entropy, entropy, atol=TOLERANCE, rtol=0)

    num_tokens = sum(len(s) - 1 for s in sequences)
    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    gradients_equal(
        engine,
        mine,
        lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {}),
        (loss, expected.model, family),
    )


def gradients_equal(engine, mine, loss, wanted, added=0.0) -> dict[str, float]:
    """Hold an update against a loss, the transformers model that it is of, and its family;
    `added` to the loss are what the engine adds itself. Returns the update's metrics."""
    total, model, family = wanted
    model.zero_grad()
    (total + added).backward()
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    norm = torch.stack([g.norm() for g in named.values()]).norm().item()
    expected = local_gradients(engine, named_as(family, by_checkpoint_name(named)))

    seen: dict[str, torch.Tensor] = {}
    step = engine.optimizer.step

    def spy() -> float:
        for index, chunk in enumerate(engine._chunks):
            for name, parameter in chunk.named_parameters():
                local = f"chunk{index}.{name.replace('module.', '')}"
                seen[local] = parameter.main_grad.clone().view(-1)
        return step()

    engine.optimizer.step = spy
    metrics = engine.update(mine, loss)
    assert metrics["loss"] == pytest.approx(total.item(), abs=TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
    owned = list(engine.optimizer.owned_ranges())
    assert owned
    for one in owned:
        part = slice(one.start, one.stop)
        torch.testing.assert_close(
            seen[one.name][part], expected[one.name][part], atol=TOLERANCE, rtol=0
        )
    return metrics
