"""What the trainer asks of an engine that trains a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

import torch

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import Head as Head
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap, TensorSpec

STATE_KINDS = ("main", "exp_avg", "exp_avg_sq")
"""Of an optimizer's state: master weights and Adam's two moments, all float32."""


def state_specs(tensors: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Logical tensors of the optimizer state of a model's tensors, named '<kind>/<name>'."""
    return {
        f"{kind}/{name}": TensorSpec(spec.shape, "float32")
        for kind in STATE_KINDS
        for name, spec in tensors.items()
    }


Part = Literal["parameters", "gradients", "optimizer"]
"""Of an engine's memory."""

HostCopy = Sequence[Sequence[torch.Tensor]]
"""What the storages of weights hold, in host memory: each in pieces of bytes."""


@dataclass(frozen=True)
class Wanted:
    """What a language model gives besides log-probs and entropy, each computed only if asked for;
    at the same temperature, but for `untempered`."""

    untempered: bool = False
    """Log-probs at temperature 1."""
    sum_p_squared: bool = False
    """Sums over the vocabulary of squared probabilities."""
    top_k: int = 0
    """So many of the likeliest tokens, and their log-probs."""
    candidates: Sequence[torch.Tensor] | None = None
    """Log-probs of these tokens, (L - 1, k) int64 for each sequence; differentiable."""
    experts: Sequence[torch.Tensor] | None = None
    """Of a mixture of experts: compute everything with tokens routed to these, (L - 1, bytes) uint8
    for each sequence (`Architecture.routed_bytes`); the last token goes where its router likes."""
    allowed: Sequence[torch.Tensor] | None = None
    """Compute everything of the distribution over these tokens alone: (L - 1, bytes) uint8 for each
    sequence, a bit a token of the vocabulary, the lowest first; a row without any allows all."""

    def of(self, indices: Sequence[int]) -> Wanted:
        """The same of some of the sequences."""
        found = self
        if self.candidates is not None:
            found = replace(found, candidates=[self.candidates[i] for i in indices])
        if self.experts is not None:
            found = replace(found, experts=[self.experts[i] for i in indices])
        if self.allowed is not None:
            found = replace(found, allowed=[self.allowed[i] for i in indices])
        return found


NOTHING_MORE = Wanted()


@dataclass(frozen=True)
class TokenOutputs:
    """Outputs of one sequence of L tokens, each (L - 1,) float32 if nothing else is said.

    Element i belongs to token i + 1: its log-probability, the entropy of the distribution it was
    drawn from, or the value of the state before it.
    """

    log_probs: torch.Tensor | None = None
    """Head language_model."""
    entropy: torch.Tensor | None = None
    """Head language_model."""
    untempered: torch.Tensor | None = None
    """Log-probability at temperature 1, where it was asked for (`Wanted`), as are the next four."""
    sum_p_squared: torch.Tensor | None = None
    """Sum of the squares of the distribution's probabilities."""
    top_tokens: torch.Tensor | None = None
    """(L - 1, k) int64: the distribution's likeliest tokens, the likeliest first."""
    top_log_probs: torch.Tensor | None = None
    """(L - 1, k): theirs."""
    candidate_log_probs: torch.Tensor | None = None
    """(L - 1, k): of the tokens that were given."""
    values: torch.Tensor | None = None
    """Head value."""
    scores: torch.Tensor | None = None
    """Head score: (1,), the output at the last token, which has read the whole sequence."""

    def detached(self) -> TokenOutputs:
        """The same numbers without a graph."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return TokenOutputs(**{n: v.detach() for n, v in found.items() if v is not None})


Sums = dict[str, torch.Tensor]
"""Of metrics over a micro-batch, scalars without a graph: read as numbers, they would have the host
wait for the device at every micro-batch."""

Loss = Callable[[Sequence[int], Sequence[TokenOutputs]], tuple[torch.Tensor, Sums]]
"""(indices of a micro-batch's sequences, their outputs) to (scalar, sums of metrics).

The scalar is divided by global normalisers already: gradients are summed over everything.
"""

Seen = Callable[[Sequence[TokenOutputs]], None]
"""Told the outputs of all sequences that an update is of, without a graph, before the weights
change."""


class InferenceEngine(Protocol):
    """What a role that is not trained asks of its engine."""

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: Wanted = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        """What the head says of every sequence, without gradient.

        Args:
            sequences: (L,) int64 token tensors; L >= 2, or 1 for a score.
            temperature: divides a language model's logits.
            wanted: what else a language model gives, from the same pass.

        Returns:
            One entry per sequence, on every rank of the model-parallel group.
        """
        ...


class TrainingEngine(InferenceEngine, Protocol):
    """One model on one training layout.

    All ranks of the layout build it and call its methods together, ranks outside do not. Sequences
    are those of this rank's data-parallel replica, the same on all ranks of a model-parallel group.
    """

    head: Head
    dtype: torch.dtype
    """Of the parameters."""
    arch: Architecture
    layout: TrainLayout
    shard_map: ShardMap
    """Of the model's own parameters, over all ranks of the layout."""
    trained_map: ShardMap
    """Of what is trained and saved: the same, or adapters (and a new head) where it has some."""
    weights: Mapping[str, torch.Tensor]
    """This rank's parameters by local name, those of adapters included; call `weights_changed`
    after filling them."""

    @property
    def is_trainable(self) -> bool:
        """Whether it has an optimizer."""
        ...

    def weights_changed(self) -> None:
        """Tell the engine that `weights` were filled from outside."""
        ...

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        """Regions of this rank's optimizer state, with the specs of everybody's.

        Tensors are named '<kind>/<logical name>', kind being main, exp_avg or exp_avg_sq.

        Args:
            primary: leave out what another rank of the layout holds as well and stands for, so
                that each element is one rank's to save.
        """
        ...

    def optimizer_tensors(self) -> Mapping[str, torch.Tensor]:
        """Memory of this rank's optimizer state (flat, float32) by the local names of
        `optimizer_map`; filling it restores the state."""
        ...

    def counters(self) -> dict[str, int]:
        """What else the optimizer remembers: num_steps."""
        ...

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        """Continue from what `counters` gave."""
        ...

    def update(
        self,
        sequences: Sequence[torch.Tensor],
        loss: Loss,
        temperature: float = 1.0,
        together: int = 1,
        wanted: Wanted = NOTHING_MORE,
        seen: Seen | None = None,
    ) -> dict[str, float]:
        """One optimizer step on the summed loss of all sequences of all replicas.

        Args:
            sequences: (L,) int64 token tensors.
            loss: of one micro-batch.
            temperature: divides a language model's logits.
            together: so many neighbours always share a micro-batch, in their order: 2 for pairs.
            wanted: what else the loss gets of a language model.
            seen: called on every rank of the model-parallel group; what it raises leaves the
                weights as they are.

        Returns:
            Sums of the loss function's metrics over all replicas, and `loss`, `grad_norm`, `lr`;
            with `wanted.experts` router_disagreement, the share of tokens x layers for which the
            router would have chosen other experts; the same on every rank of the layout.

        Raises:
            TrainingError: the loss or the gradient is not finite, and optimizer.on_nonfinite is
                stop, or the updates before were skipped, too; weights are as they were.
        """
        ...

    @property
    def adapted(self) -> Mapping[str, torch.Tensor]:
        """Those of `weights` that have an adapter."""
        ...

    def merge(self, name: str, to: torch.Tensor) -> None:
        """Write an adapted weight with its adapters into `to`, of the same shape and any type:
        computed in float32 and rounded once. The weight stays as it is."""
        ...

    def without_adapters(self) -> AbstractContextManager[None]:
        """Inside, `infer` computes what the model's own weights give."""
        ...

    def host_copy(self) -> HostCopy:
        """The weights in host memory, page-locked where they are on a GPU; of adapters and what is
        trained with them alone, where there are some."""
        ...

    def exchanged(self, values: HostCopy) -> AbstractContextManager[None]:
        """Have other weights inside; those of before come back bit for bit.

        Args:
            values: a `host_copy` of this engine.
        """
        ...

    def offload(self, part: Part, once: bool = False) -> int:
        """Free the device memory of `part`; gradients are dropped, the rest is kept on the host.

        Args:
            part: what to move.
            once: take ordinary memory, which copies slowly and is given back.

        Returns:
            Bytes freed.
        """
        ...

    def onload(self, part: Part) -> None:
        """Undo `offload`; gradients come back as zeros."""
        ...
