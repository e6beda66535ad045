"""Training speed, as a share of the matrix products that the device can do at best.

A token of a sequence of L tokens costs 6 (N + L l h d) operations: N are the parameters that take
part in matrix products (with tied embeddings all of them, the embedding counted once, for the
output layer), l the layers and h d the width of all query heads. 2 N and 2 L l h d are the forward
pass, the backward pass is twice that; attention is causal, so a token meets L / 2 others on
average, in two products. Recomputation is not counted.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.setting import (
    GIB,
    Figure,
    Setting,
    architecture,
    build_engine,
    fill_randomly,
    mean_loss,
    random_sequences,
)
from verl_hpc.config.model import Fp8Config, OptimizerConfig
from verl_hpc.layout.architecture import Architecture

if TYPE_CHECKING:
    from verl_hpc.engines.megatron.engine import MegatronEngine

OPTIMIZER = OptimizerConfig(lr=3e-5)


def run(setting: Setting) -> list[Figure]:
    """Tokens per second and model FLOP utilisation of steps of the same batch."""
    peak = matmul_flops(setting)
    arch = architecture(setting.shapes.model)
    seconds, losses = time_steps(setting, speed_engine(setting, arch))
    tokens = setting.shapes.sequence_length * setting.shapes.num_sequences
    flops = flops_per_token(arch, setting.shapes.sequence_length) * tokens / seconds
    figures = [
        Figure("parameters", arch.num_parameters / 1e6, "million"),
        Figure("matrix product at its best", peak / 1e12, "TFLOP/s"),
        Figure("training", tokens / seconds, "tokens/s"),
        Figure("one step", seconds, "s"),
        Figure("training, operations", flops / 1e12, "TFLOP/s"),
        Figure("model FLOP utilisation", 100 * flops / peak, "%"),
        Figure("loss, last minus first step", losses[-1] - losses[0], at_most=0.0),
    ]
    if setting.on_gpu:
        import torch

        largest = torch.cuda.max_memory_allocated() / GIB
        figures.append(Figure("device memory at most", largest, "GiB"))
    return figures


def flops_per_token(arch: Architecture, length: int) -> float:
    """Operations of forward and backward pass (see the top of this file)."""
    lookup = 0 if arch.tied_embeddings else arch.vocab_size * arch.hidden_size
    attention = length * arch.num_layers * arch.num_heads * arch.head_size
    return 6.0 * (arch.num_parameters - lookup + attention)


def matmul_flops(setting: Setting) -> float:
    """Operations per second of a large square matrix product in the model's type."""
    import torch

    size = setting.shapes.matmul_size
    dtype = getattr(torch, setting.shapes.dtype)
    a, b = (torch.randn(size, size, device=setting.device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    # Several a call: one alone is not much longer than waiting for it.
    seconds = setting.seconds_per_call(lambda: [torch.matmul(a, b, out=out) for _ in range(8)])
    return 8 * 2.0 * size**3 / seconds


def speed_engine(
    setting: Setting,
    arch: Architecture,
    fp8: Fp8Config | None = None,
    max_tokens: int | None = None,
    **settings: Any,
) -> MegatronEngine:
    """An engine with the same random weights every time.

    Args:
        max_tokens: of a micro-batch; that of the setting's shapes if None.
        settings: further ones of `build_engine`.
    """
    engine = build_engine(
        setting,
        arch,
        optimizer=OPTIMIZER,
        max_tokens=max_tokens or setting.shapes.max_tokens,
        fp8=fp8,
        **settings,
    )
    fill_randomly(engine.shard_map, engine.weights)
    engine.weights_changed()
    return engine


def time_steps(
    setting: Setting, engine: MegatronEngine, num_steps: int | None = None
) -> tuple[float, list[float]]:
    """Median seconds of an optimizer step, and the loss before each step.

    Args:
        setting: the run.
        engine: what to train, always on the same batch.
        num_steps: timed steps; as many as fit into the time, three at least, if None.
    """
    shapes = setting.shapes
    lengths = [shapes.sequence_length] * shapes.num_sequences
    sequences = random_sequences(lengths, engine.arch.vocab_size, setting.device)
    loss = mean_loss(sum(lengths) - len(lengths))
    spent: list[float] = []
    # The first two compile and make the optimizer's state.
    losses = [engine.update(sequences, loss)["loss"] for _ in range(2)]
    while not _enough(setting, spent, num_steps):
        setting.synchronize()
        start = time.perf_counter()
        losses.append(engine.update(sequences, loss)["loss"])
        setting.synchronize()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent), losses


def _enough(setting: Setting, spent: list[float], num_steps: int | None) -> bool:
    if num_steps is not None:
        return len(spent) >= num_steps
    return len(spent) >= 3 and sum(spent) >= setting.seconds
