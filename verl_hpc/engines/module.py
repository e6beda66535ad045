"""A training engine over any torch module of this process: one rank, torch's AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.engines.adamw import ModuleAdamW
from verl_hpc.engines.protocol import (
    NOTHING_MORE,
    HostCopy,
    Loss,
    OnOutputs,
    OutputOptions,
    Part,
    TokenOutputs,
    state_specs,
)
from verl_hpc.errors import ModelError, NotFiniteError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import Head
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec, dtype_name, whole
from verl_hpc.placement.balance import micro_batches


class ModuleEngine:
    """`TrainingEngine` of one rank over an existing module, which is never offloaded.

    Its dropout is off, as in all engines. Parameters that are not float32 have float32 master
    weights.

    Args:
        module: `module(input_ids, attention_mask)` gives logits, (B, L, vocabulary) or with them as
            `.logits`, or for head value (B, L) or (B, L, 1).
        arch: the module's sizes.
        head: language_model or value.
        optimizer: None for a module that is not trained.
        device: device of the run's other tensors; the module may be on another.
        max_tokens: limit of a micro-batch.
        names: logical names by the module's parameter names, where they differ.

    Raises:
        ConfigError: a learning rate that is not constant, or updates that are to be skipped.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        arch: Architecture,
        head: Head,
        optimizer: OptimizerConfig | None,
        device: torch.device,
        max_tokens: int = 16384,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.module, self.arch, self.head = module.eval(), arch, head
        self.layout, self._device, self._max_tokens = TrainLayout(), device, max_tokens
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.parameters = {(names or {}).get(n, n): p for n, p in trained.items()}
        """Trained parameters by logical name."""
        self.weights: Mapping[str, torch.Tensor] = {
            name: p.detach() for name, p in self.parameters.items()
        }
        self.dtype = next(iter(self.weights.values())).dtype
        self.shard_map = self.trained_map = here(
            {n: TensorSpec(tuple(w.shape), dtype_name(w.dtype)) for n, w in self.weights.items()}
        )
        self._num_steps = 0
        self._optimizer = ModuleAdamW(self.parameters, optimizer) if optimizer is not None else None

    @property
    def is_trainable(self) -> bool:
        return self._optimizer is not None

    def weights_changed(self) -> None:
        if self._optimizer is not None:
            self._optimizer.take_weights()

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        del primary
        return here(state_specs(self.shard_map.tensors))

    def optimizer_tensors(self) -> Mapping[str, torch.Tensor]:
        assert self._optimizer is not None, "it is not trained"
        return self._optimizer.state_tensors()

    def counters(self) -> dict[str, int]:
        return {"num_steps": self._num_steps}

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        self._num_steps = counters["num_steps"]
        if self._optimizer is not None:
            self._optimizer.restore(self._num_steps)

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        by_index: dict[int, TokenOutputs] = {}
        with torch.no_grad():
            for indices in self._micro_batches(sequences, 1):
                outputs = self._forward(sequences, indices, temperature, wanted)
                by_index |= dict(zip(indices, outputs, strict=True))
        return [by_index[i] for i in range(len(sequences))]

    def update(
        self,
        sequences: Sequence[torch.Tensor],
        loss: Loss,
        temperature: float = 1.0,
        together: int = 1,
        wanted: OutputOptions = NOTHING_MORE,
        seen: OnOutputs | None = None,
    ) -> dict[str, float]:
        assert self._optimizer is not None, "it is not trained"
        for p in self.parameters.values():
            p.grad = None
        sums: dict[str, torch.Tensor] = {}
        kept: dict[int, TokenOutputs] = {}
        for indices in self._micro_batches(sequences, together):
            outputs = self._forward(sequences, indices, temperature, wanted)
            part, metrics = loss(indices, outputs)
            part.backward()  # type: ignore[no-untyped-call]
            kept |= {i: o.detached() for i, o in zip(indices, outputs, strict=True)}
            for name, value in {"loss": part.detach(), **metrics}.items():
                sums[name] = sums[name] + value if name in sums else value
        if seen is not None:
            seen([kept[i] for i in range(len(sequences))])
        results = {name: float(value) for name, value in sums.items()}
        if not math.isfinite(results["loss"]):
            raise NotFiniteError(f"the loss is {results['loss']}; the weights are as they were")
        norm = self._optimizer.update()
        self._num_steps += 1
        return results | {"grad_norm": norm, "lr": self._optimizer.lr}

    def _micro_batches(
        self, sequences: Sequence[torch.Tensor], together: int
    ) -> Iterator[Sequence[int]]:
        """Yield the indices of each micro-batch; runs of `together` neighbours are never split."""
        if not sequences:
            return
        lengths = [len(tokens) for tokens in sequences]
        units = [range(i, i + together) for i in range(0, len(lengths), together)]
        sizes = [sum(lengths[i] for i in unit) for unit in units]
        for members in micro_batches(sizes, self._max_tokens):
            yield [i for unit in members for i in units[unit]]

    def _forward(
        self,
        sequences: Sequence[torch.Tensor],
        indices: Sequence[int],
        temperature: float,
        wanted: OutputOptions,
    ) -> list[TokenOutputs]:
        assert wanted.experts is None, "the configuration refuses that"
        rows = [sequences[i] for i in indices]
        device = next(self.module.parameters()).device
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = (torch.arange(padded.shape[1], device=device) < lengths[:, None]).long()
        result = self.module(padded, attention_mask=mask)
        outputs = getattr(result, "logits", result)
        _check(outputs, self.head, padded)
        if self.head == "value":
            values = outputs.float().reshape(padded.shape).to(self._device)
            return [TokenOutputs(values=values[i, : len(row) - 1]) for i, row in enumerate(rows)]
        return [
            outputs_of_row(
                outputs[i, : len(row) - 1].to(self._device).float(),
                row[1:].to(self._device),
                temperature,
                wanted.of([index]),
            )
            for i, (index, row) in enumerate(zip(indices, rows, strict=True))
        ]

    def without_adapters(self) -> AbstractContextManager[None]:
        return nullcontext()

    def host_copy(self) -> HostCopy:
        return [[w.to("cpu", copy=True)] for w in self.weights.values()]

    @contextmanager
    def exchanged(self, values: HostCopy) -> Iterator[None]:
        own = self.host_copy()
        try:
            self._fill(values)
            yield
        finally:
            self._fill(own)

    def _fill(self, values: HostCopy) -> None:
        for weight, (value,) in zip(self.weights.values(), values, strict=True):
            weight.copy_(value)

    def offload(self, part: Part, once: bool = False) -> int:
        """Do nothing; return 0 bytes freed."""
        del part, once
        return 0

    def onload(self, part: Part) -> None:
        """Do nothing; everything stayed on its device."""


def outputs_of_row(
    logits: torch.Tensor, chosen: torch.Tensor, temperature: float, wanted: OutputOptions
) -> TokenOutputs:
    """Compute outputs from a language model's logits of one sequence.

    Args:
        logits: (L - 1, vocabulary) float32, before each token but the first.
        chosen: (L - 1,) int64, these tokens.
        temperature: divides the logits.
        wanted: further outputs, for this sequence only.
    """
    index = chosen[:, None]
    log_probs = (logits / temperature).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    outputs = TokenOutputs(log_probs.gather(-1, index)[:, 0], entropy)
    more: dict[str, torch.Tensor] = {}
    if wanted.untempered:
        more["untempered"] = logits.log_softmax(-1).gather(-1, index)[:, 0]
    if wanted.sum_p_squared:
        more["sum_p_squared"] = log_probs.exp().square().sum(-1)
    if wanted.top_k:
        more["top_log_probs"], more["top_tokens"] = log_probs.topk(wanted.top_k)
    if wanted.candidates is not None:
        more["candidate_log_probs"] = log_probs.gather(-1, wanted.candidates[0])
    return replace(outputs, **more)


def here(specs: Mapping[str, TensorSpec]) -> ShardMap:
    """Return a map by which rank 0 has every tensor whole, under its own name."""
    regions: list[Region] = [whole(n, n, s.shape, (0,)) for n, s in specs.items()]
    return ShardMap(specs, regions)


def _check(outputs: Any, head: Head, padded: torch.Tensor) -> None:
    """Raises: ModelError: a user's module gives something else than its head should."""
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    batch, length = padded.shape
    fits = isinstance(shape, tuple) and shape[:2] == (batch, length)
    if head == "value":
        if not fits or outputs.numel() != batch * length:
            raise ModelError(
                f"the critic's forward gives {shape}; expected a value per token, "
                f"({batch}, {length}) or ({batch}, {length}, 1)"
            )
    elif not fits or outputs.ndim != 3:
        raise ModelError(
            f"the actor's forward gives {shape}; expected logits, ({batch}, {length}, vocabulary), "
            "or an output that has them as .logits"
        )
