"""Holding engines against transformers: outputs, and the gradients that optimizers own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
import torch

from tests.mpi.engines_for_tests import window
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap

TOLERANCE = 1e-5
T = TypeVar("T")


def replica_share(layout: TrainLayout) -> slice:
    """The part of a step's sequences that this rank's replica has."""
    index = layout.data_grid.coordinates(torch.distributed.get_rank())["dp"]
    return slice(index, None, layout.num_replicas)


def summed(num_tokens: float):
    """A loss: the negative sum of log-probs over a number of tokens."""
    return lambda _, outputs: (-sum(o.log_probs.sum() for o in outputs) / num_tokens, {})


def num_targets(sequences) -> int:
    """How many tokens have a log-prob."""
    return sum(len(s) - 1 for s in sequences)


def reference_loss(reference, sequences) -> torch.Tensor:
    """The mean negative log-prob of sequences, by transformers."""
    return -sum(reference.log_probs(s).sum() for s in sequences) / num_targets(sequences)


def once(here, work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, where alone transformers computes, on all ranks."""
    return here.control.broadcast(work() if here.world.rank == 0 else None)


def reference_update(reference, family, sequences, added=0.0) -> tuple[float, dict]:
    """The mean negative log-prob of a batch by transformers, and its gradients with those of what
    an engine adds itself."""
    loss = reference_loss(reference, sequences)
    reference.model.zero_grad()
    (loss + added).backward()
    return loss.item(), gradients_of(reference.model, family)


def mean_loss_equals(engine, mine, sequences, loss, gradients) -> dict[str, float]:
    """Hold an update on a whole batch against a `reference_update`. Returns its metrics."""
    num_tokens = num_targets(sequences)

    def counted(indices, outputs):
        count = torch.tensor(float(num_targets([mine[i] for i in indices])))
        return summed(num_tokens)(indices, outputs)[0], {"tokens": count}

    metrics = update_equals(engine, lambda: engine.update(mine, counted), gradients, loss)
    assert metrics["tokens"] == num_tokens, "each counted once, though several ranks have it"
    return metrics


def head_weight(hidden_size: int) -> torch.Tensor:
    """(1, hidden): one that is not there starts at zero, and trains nothing below it."""
    return torch.linspace(-0.1, 0.1, hidden_size)[None]


def fill_head(engine) -> None:
    """Fill an engine's head with `head_weight`, in any layout."""
    whole = head_weight(engine.arch.hidden_size)
    for region in engine.shard_map.held_by(torch.distributed.get_rank()):
        if region.tensor == HEAD_TENSORS[engine.head]:
            local = engine.weights[region.view.name].view(-1)
            local[: whole.numel()] = whole[region.box.slices].flatten()
    engine.weights_changed()


def num_outputs(head, sequences) -> int:
    """What a loss over a step's sequences is divided by."""
    return len(sequences) if head == "score" else sum(len(s) for s in sequences)


def score_loss(head, sequences):
    """A loss of the outputs of any head that does not depend on micro-batches."""
    name = {"language_model": "log_probs", "value": "values", "score": "scores"}[head]
    size = num_outputs(head, sequences)
    return lambda _, found: (sum(getattr(o, name).square().sum() for o in found) / size, {})


def by_checkpoint_name(gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers stacks experts, and their gate and up projections, in memory alone."""
    renamed = {}
    for name, gradient in gradients.items():
        fused = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up|down)_proj", name)
        fused = fused if f"{name}_bias" not in gradients else None  # gpt-oss has them so in files
        for expert, one in enumerate(gradient) if fused else ():
            begin = f"{fused[1]}.{expert}"
            if fused[2] == "gate_up":
                gate, up = one.chunk(2)
                renamed |= {f"{begin}.gate_proj.weight": gate, f"{begin}.up_proj.weight": up}
            else:
                renamed[f"{begin}.down_proj.weight"] = one
        if not fused:
            renamed[name] = gradient
    return renamed


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


def local_tensors(
    engine: MegatronEngine, shard_map: ShardMap, whole: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What this rank's parameters have of logical tensors, flat; zeros in buffers."""
    local = {n: torch.zeros(w.numel()) for n, w in engine.weights.items()}
    held = shard_map.held_by(torch.distributed.get_rank())
    for region in (r for r in held if r.tensor not in engine.arch.buffers):
        window(local, region).copy_(whole[region.tensor][region.box.slices])
    return local


def gradients_at_step(engine: MegatronEngine) -> dict[str, torch.Tensor]:
    """Filled in the engine's next update: reduced gradients by local name, flat."""
    seen: dict[str, torch.Tensor] = {}
    step = engine.optimizer.step

    def spy() -> float:
        for index, chunk in enumerate(engine._chunks):
            for name, parameter in chunk.named_parameters():
                if parameter.requires_grad:
                    local = f"chunk{index}.{name.replace('module.', '')}"
                    seen[local] = parameter.main_grad.clone().view(-1)
        return step()

    engine.optimizer.step = spy
    return seen


def owned_equal(engine, seen, expected) -> None:
    """Every range that this rank's optimizer owns, of tensors as `gradients_at_step` gives them."""
    owned = list(engine.optimizer.owned_ranges())
    assert owned
    for one in owned:
        part = slice(one.start, one.stop)
        torch.testing.assert_close(
            seen[one.name][part], expected[one.name][part], atol=TOLERANCE, rtol=0
        )


def outputs_equal(engine, mine, expected) -> None:
    """Log-probs and entropy of sequences, as `Reference.outputs` gives them."""
    for output, (log_probs, entropy) in zip(engine.infer(mine), expected, strict=True):
        torch.testing.assert_close(output.log_probs, log_probs, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(output.entropy, entropy, atol=TOLERANCE, rtol=0)


def gradients_of(model, family: str) -> dict[str, torch.Tensor]:
    """The gradients of a transformers model by the names of its checkpoint."""
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return named_as(family, by_checkpoint_name(named))


def update_equals(
    engine,
    update: Callable[[], dict[str, float]],
    gradients: Mapping[str, torch.Tensor],
    loss: float,
    shard_map: ShardMap | None = None,
) -> dict[str, float]:
    """Hold an update against whole gradients by logical name, and its loss; every weight that has
    a gradient then moves against it. Returns the update's metrics.

    Args:
        shard_map: of what is trained; of all weights if None.
    """
    norm = torch.stack([g.norm() for g in gradients.values()]).norm().item()
    expected = local_tensors(engine, shard_map or engine.shard_map, gradients)
    seen = gradients_at_step(engine)
    before = {name: weight.clone() for name, weight in engine.weights.items()}
    metrics = update()
    assert metrics["loss"] == pytest.approx(loss, abs=TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
    owned_equal(engine, seen, expected)
    for name, weight in engine.weights.items():
        moved, gradient = (weight - before[name]).reshape(-1), expected[name]
        large = gradient.abs() > 10 * TOLERANCE
        assert (moved[large] * gradient[large] < 0).all(), name
    return metrics
