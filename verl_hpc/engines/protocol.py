"""Protocol between the trainer and an engine that trains a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.heads import Head as Head
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap, TensorSpec

STATE_KINDS = ("main", "exp_avg", "exp_avg_sq")
"""Tensors of an optimizer's state: float32 master weights, and Adam's two moments."""


def state_specs(
    tensors: Mapping[str, TensorSpec], moments: str = "float32", buffers: Collection[str] = ()
) -> dict[str, TensorSpec]:
    """Return the logical tensors of a model's optimizer state, named '<kind>/<name>'.

    Args:
        tensors: trained tensors.
        moments: element type of Adam's moments.
        buffers: those of the tensors that have no state (`Architecture.without_state`).
    """
    return {
        f"{kind}/{name}": TensorSpec(spec.shape, "float32" if kind == "main" else moments)
        for kind in STATE_KINDS
        for name, spec in tensors.items()
        if name not in buffers
    }


Part = Literal["parameters", "gradients", "optimizer"]
"""Part of an engine's memory."""

HostCopy = Sequence[Sequence[torch.Tensor]]
"""Host copy of the weights' storages, each as pieces of bytes."""


@dataclass(frozen=True)
class OutputOptions:
    """Outputs of a language model to compute besides log-probs and entropy, all at the pass's
    temperature except `untempered`; and what goes into a pass besides tokens."""

    untempered: bool = False
    """Log-probs at temperature 1."""
    sum_p_squared: bool = False
    """Sums over the vocabulary of squared probabilities."""
    top_k: int = 0
    """Number of likeliest tokens to return, with their log-probs."""
    candidates: Sequence[torch.Tensor] | None = None
    """Log-probs of these tokens, (L - 1, k) int64 for each sequence; differentiable."""
    experts: Sequence[torch.Tensor] | None = None
    """Experts to route a mixture's tokens to, (L - 1, bytes) uint8 for each sequence
    (`Architecture.routed_bytes`); the router chooses for the last token."""

    images: Sequence[torch.Tensor] | None = None
    """Images of each sequence's prompt, (bytes,) uint8 (`hf.pictures.packed`)."""

    def of(self, indices: Sequence[int]) -> OutputOptions:
        """Return the options for the sequences at `indices`."""
        chosen = self
        if self.candidates is not None:
            chosen = replace(chosen, candidates=[self.candidates[i] for i in indices])
        if self.experts is not None:
            chosen = replace(chosen, experts=[self.experts[i] for i in indices])
        if self.images is not None:
            chosen = replace(chosen, images=[self.images[i] for i in indices])
        return chosen


NOTHING_MORE = OutputOptions()


@dataclass(frozen=True)
class TokenOutputs:
    """Outputs of one sequence of L tokens, each (L - 1,) float32 unless stated otherwise.

    Element i belongs to token i + 1: its log-probability, the entropy of the distribution it was
    drawn from, or the value of the state before it.
    """

    log_probs: torch.Tensor | None = None
    """Output of head language_model."""
    entropy: torch.Tensor | None = None
    """Output of head language_model."""
    untempered: torch.Tensor | None = None
    """Log-probability at temperature 1. This and the next four are computed on request
    (`OutputOptions`)."""
    sum_p_squared: torch.Tensor | None = None
    """Sum of the squares of the distribution's probabilities."""
    top_tokens: torch.Tensor | None = None
    """(L - 1, k) int64: the likeliest tokens, in descending order."""
    top_log_probs: torch.Tensor | None = None
    """(L - 1, k): log-probabilities of `top_tokens`."""
    candidate_log_probs: torch.Tensor | None = None
    """(L - 1, k): log-probabilities of `OutputOptions.candidates`."""
    values: torch.Tensor | None = None
    """Output of head value."""
    scores: torch.Tensor | None = None
    """Output of head score: (1,), at the last token, which has read the whole sequence."""

    def detached(self) -> TokenOutputs:
        """Return these outputs detached from the graph."""
        return TokenOutputs(**{n: v.detach() for n, v in vars(self).items() if v is not None})


Sums = dict[str, torch.Tensor]
"""Sums of metrics over a micro-batch, as detached scalar tensors: converting them to numbers would
make the host wait for the device at every micro-batch."""

Loss = Callable[[Sequence[int], Sequence[TokenOutputs]], tuple[torch.Tensor, Sums]]
"""Function of (indices of a micro-batch's sequences, their outputs) to (scalar, sums of metrics).

The scalar is already divided by global normalisers: gradients are summed, not averaged.
"""

OnOutputs = Callable[[Sequence[TokenOutputs]], None]
"""Callback with the detached outputs of all sequences of an update, before the weights change."""


class InferenceEngine(Protocol):
    """Engine of a role that is not trained."""

    def infer(
        self,
        sequences: Sequence[torch.Tensor],
        temperature: float = 1.0,
        wanted: OutputOptions = NOTHING_MORE,
    ) -> list[TokenOutputs]:
        """Compute the head's outputs of every sequence, without gradients.

        Args:
            sequences: (L,) int64 token tensors; L >= 2, or 1 for a score.
            temperature: divides a language model's logits.
            wanted: further outputs of a language model, from the same pass.

        Returns:
            One entry per sequence, on every rank of the model-parallel group.
        """


class TrainingEngine(InferenceEngine, Protocol):
    """One model on one training layout.

    All ranks of the layout build it and call its methods together, ranks outside do not. Sequences
    are those of this rank's data-parallel replica, the same on all ranks of a model-parallel group.
    """

    head: Head
    dtype: torch.dtype
    """Element type of the parameters."""
    arch: Architecture
    layout: TrainLayout
    shard_map: ShardMap
    """Map of the model's own parameters over all ranks of the layout."""
    trained_map: ShardMap
    """Map of the trained and saved tensors: the model's own, or adapters (and a new head) if it has
    some."""
    weights: Mapping[str, torch.Tensor]
    """This rank's parameters by local name, adapters included; call `weights_changed` after filling
    them."""

    @property
    def is_trainable(self) -> bool:
        """Whether it has an optimizer."""

    def weights_changed(self) -> None:
        """Notify the engine that `weights` were filled from outside."""

    def optimizer_map(self, primary: bool = False) -> ShardMap:
        """Return the regions of this rank's optimizer state, with the specs of the whole state.

        Tensors are named '<kind>/<logical name>', kind being main, exp_avg or exp_avg_sq.

        Args:
            primary: leave out regions that another rank of the layout saves, so that every element
                is saved by one rank.
        """

    def optimizer_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the memory of this rank's optimizer state (flat, float32) by the local names of
        `optimizer_map`; filling it restores the state."""

    def counters(self) -> dict[str, int]:
        """Return the optimizer's counters: num_steps."""

    def restore_counters(self, counters: Mapping[str, int]) -> None:
        """Restore counters that `counters` returned."""

    def update(
        self,
        sequences: Sequence[torch.Tensor],
        loss: Loss,
        temperature: float = 1.0,
        together: int = 1,
        wanted: OutputOptions = NOTHING_MORE,
        seen: OnOutputs | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on the summed loss of all sequences of all replicas.

        Args:
            sequences: (L,) int64 token tensors.
            loss: loss of one micro-batch.
            temperature: divides a language model's logits.
            together: number of neighbours that always share a micro-batch, in their order: 2 for
                pairs.
            wanted: further outputs that the loss needs of a language model.
            seen: called on every rank of the model-parallel group; if it raises, the weights are
                kept.

        Returns:
            Sums of the loss function's metrics over all replicas, and `loss`, `grad_norm`, `lr`;
            with `wanted.experts` router_disagreement, the share of tokens x layers for which the
            router would have chosen other experts; the same on every rank of the layout.

        Raises:
            TrainingError: the loss or the gradient is not finite, and optimizer.on_nonfinite is
                stop or too many updates in a row were skipped; weights are unchanged.
        """

    def without_adapters(self) -> AbstractContextManager[None]:
        """Make `infer` use the model's own weights, without adapters, inside this context."""

    def host_copy(self) -> HostCopy:
        """Return the weights in host memory, page-locked on GPUs; with adapters, only those and
        what is trained with them."""

    def exchanged(self, values: HostCopy) -> AbstractContextManager[None]:
        """Use other weights inside this context; the previous ones come back bit for bit.

        Args:
            values: a `host_copy` of this engine.
        """

    def offload(self, part: Part, once: bool = False) -> int:
        """Free the device memory of `part`; gradients are dropped, the rest is kept on the host.

        Args:
            part: what to move.
            once: use pageable host memory, which copies slowly and is freed afterwards.

        Returns:
            Bytes freed.
        """

    def onload(self, part: Part) -> None:
        """Undo `offload`; gradients come back as zeros."""
