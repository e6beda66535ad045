"""A training engine in this process, on plain torch, so that tests take milliseconds.

The model reads a sequence by its running mean and its newest token. It is small enough to write
down, every output is causal, and its parameters have the names and shapes of a decoder's ends, so
that transfers and checkpoints work with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.one_process import OneProcess, outputs_of_row
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    STATE_KINDS,
    Loss,
    OnOutputs,
    OutputOptions,
    TokenOutputs,
    state_specs,
)
from verl_hpc.errors import TrainingError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import HEAD_TENSORS, Head
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec, whole
from verl_hpc.runtime.one_rank import LocalChannel as LocalChannel
from verl_hpc.runtime.one_rank import LocalControl as LocalControl

EMBEDDING = "model.embed_tokens.weight"


def tiny_architecture(vocab_size: int = 12, hidden_size: int = 6) -> Architecture:
    """Return sizes for a model of this module; it has no layers, whose sizes do not matter."""
    return Architecture("llama", 1, hidden_size, 8, 2, 1, 3, vocab_size, False, dtype="float32")


class TinyModel:
    """h_i = tanh(mean(e_0 .. e_i) + e_i), outputs h_i W, with embeddings e and the head's W.

    Args:
        arch: sizes, of which vocab_size and hidden_size are used.
        head: kind of the output layer W.
        seed: seed of the weights.
    """

    def __init__(self, arch: Architecture, head: Head = "language_model", seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.head_name = HEAD_TENSORS.get(head, "lm_head.weight")
        num_outputs = 1 if head in HEAD_TENSORS else arch.vocab_size
        shapes = {
            EMBEDDING: (arch.vocab_size, arch.hidden_size),
            self.head_name: (num_outputs, arch.hidden_size),
        }
        self.weights = {n: torch.randn(s, generator=generator) for n, s in shapes.items()}

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (L,) int64 to (L, outputs) float32; row i depends on tokens 0 to i."""
        embedded = self.weights[EMBEDDING][tokens]
        counts = torch.arange(1, len(tokens) + 1)[:, None]
        hidden = torch.tanh(embedded.cumsum(0) / counts + embedded)
        return hidden @ self.weights[self.head_name].T

    @property
    def shard_map(self) -> ShardMap:
        """Shard map with everything on rank 0."""
        return _on_rank_0({n: (n, tuple(w.shape)) for n, w in self.weights.items()})


def _on_rank_0(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> ShardMap:
    """Return a shard map on rank 0 of tensors given as (logical name, shape) by local name."""
    specs = {logical: TensorSpec(shape, "float32") for logical, shape in tensors.values()}
    regions: list[Region] = [whole(n, logical, s, (0,)) for n, (logical, s) in tensors.items()]
    return ShardMap(specs, regions)


class LocalEngine(OneProcess):
    """`TrainingEngine` on one rank: `TinyModel` and AdamW.

    Args:
        arch: sizes of the model; `tiny_architecture` if None.
        head: kind of its outputs.
        optimizer: None if it is not trained; the schedule is ignored.
        seed: seed of the weights.
        micro_batch: sequences per call of the loss; the last call may have fewer.
    """

    def __init__(
        self,
        arch: Architecture | None = None,
        head: Head = "language_model",
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
        micro_batch: int = 2,
    ) -> None:
        self.arch, self.head, self.micro_batch = arch or tiny_architecture(), head, micro_batch
        self.dtype, self.layout = torch.float32, TrainLayout()
        self._model = TinyModel(self.arch, head, seed)
        self.weights: Mapping[str, torch.Tensor] = self._model.weights
        self.shard_map = self.trained_map = self._model.shard_map
        self.adapted: Mapping[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        """Gradients of the last update, before clipping."""
        self._settings, self._num_steps = optimizer, 0
        self._state = {
            f"{kind}/{name}": weight.clone() if kind == "main" else torch.zeros_like(weight)
            for kind in STATE_KINDS
            for name, weight in self.weights.items()
            if optimizer is not None
        }

    @property
    def is_trainable(self) -> bool:
        return self._settings is not None

    def weights_changed(self) -> None:
        for name, weight in self.weights.items() if self.is_trainable else ():
            self._state[f"main/{name}"].copy_(weight)

    def merge(self, name: str, to: torch.Tensor) -> None:
        raise NotImplementedError("it has no adapters")

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        del primary
        specs = state_specs(self.shard_map.tensors)
        return _on_rank_0({name: (name, spec.shape) for name, spec in specs.items()})

    def optimizer_tensors(self) -> Mapping[str, torch.Tensor]:
        return {name: tensor.flatten() for name, tensor in self._state.items()}

    def counters(self) -> dict[str, int]:
        return {"num_steps": self._num_steps}

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        self._num_steps = counters["num_steps"]

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        with torch.no_grad():
            return [
                self._outputs(tokens, temperature, wanted.of([i]))
                for i, tokens in enumerate(sequences)
            ]

    def _outputs(
        self, tokens: torch.Tensor, temperature: float, wanted: OutputOptions
    ) -> TokenOutputs:
        """Compute the outputs of one sequence; `wanted` is restricted to it."""
        assert wanted.allowed is None, "no constraint reaches it"
        rows = self._model(tokens)
        if self.head == "score":
            return TokenOutputs(scores=rows[-1])
        if self.head == "value":
            return TokenOutputs(values=rows[:-1, 0])
        return outputs_of_row(rows[:-1], tokens[1:], temperature, wanted)

    def update(
        self,
        sequences: Sequence[torch.Tensor],
        loss: Loss,
        temperature: float = 1.0,
        together: int = 1,
        wanted: OutputOptions = NOTHING_MORE,
        seen: OnOutputs | None = None,
    ) -> dict[str, float]:
        assert self._settings is not None, "it is not trained"
        metrics = {"loss": 0.0}
        kept: list[TokenOutputs] = []
        size = max(self.micro_batch // together, 1) * together
        with self._gradients_kept():
            for start in range(0, len(sequences), size):
                indices = range(len(sequences))[start : start + size]
                outputs = [
                    self._outputs(sequences[i], temperature, wanted.of([i])) for i in indices
                ]
                part, sums = loss(indices, outputs)
                part.backward()  # type: ignore[no-untyped-call]
                kept += [o.detached() for o in outputs]
                for name, value in {"loss": part.detach(), **sums}.items():
                    metrics[name] = metrics.get(name, 0.0) + float(value)
        if seen is not None:
            seen(kept)
        return metrics | {"grad_norm": self._step(self._settings), "lr": self._settings.lr}

    @contextmanager
    def _gradients_kept(self) -> Iterator[None]:
        """Record gradients of the block, and store them in `gradients`."""
        for weight in self.weights.values():
            weight.requires_grad_()
        try:
            yield
            for name, weight in self.weights.items():
                zero = torch.zeros_like(weight)
                self.gradients[name] = zero if weight.grad is None else weight.grad
        finally:
            for weight in self.weights.values():
                weight.requires_grad_(False).grad = None

    def _step(self, settings: OptimizerConfig) -> float:
        """Take an AdamW step (arXiv 1711.05101) on clipped gradients; return the norm before
        clipping."""
        norm = math.sqrt(sum(float(g.square().sum()) for g in self.gradients.values()))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm}; the weights are as they were")
        scale = min(1.0, settings.clip_grad / (norm + 1e-6)) if settings.clip_grad else 1.0
        self._num_steps += 1
        for name, weight in self.weights.items():
            main, mean, square = (self._state[f"{kind}/{name}"] for kind in STATE_KINDS)
            gradient = scale * self.gradients[name]
            mean.lerp_(gradient, 1 - settings.beta1)
            square.lerp_(gradient.square(), 1 - settings.beta2)
            first = mean / (1 - settings.beta1**self._num_steps)
            second = square / (1 - settings.beta2**self._num_steps)
            main.mul_(1 - settings.lr * settings.weight_decay)
            main.sub_(settings.lr * first / (second.sqrt() + settings.epsilon))
            weight.copy_(main)
        return norm
