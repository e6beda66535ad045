"""Common code of single-process engines: weights that are never offloaded, and outputs of a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch

from verl_hpc.algorithms.allowed import unpacked
from verl_hpc.engines.protocol import HostCopy, OutputOptions, Part, TokenOutputs


class OneProcess:
    """Part of a `TrainingEngine` without adapters whose weights are never offloaded."""

    weights: Mapping[str, torch.Tensor]

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
    forbidden = None
    if wanted.allowed is not None:
        forbidden = ~unpacked(wanted.allowed[0].to(logits.device), logits.shape[-1])

    def of_allowed(scores: torch.Tensor) -> torch.Tensor:
        # Not minus infinity, of which 0 times makes NaN.
        least = torch.finfo(scores.dtype).min
        return scores if forbidden is None else scores.masked_fill(forbidden, least)

    log_probs = of_allowed(logits / temperature).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    outputs = TokenOutputs(log_probs.gather(-1, index)[:, 0], entropy)
    more: dict[str, torch.Tensor] = {}
    if wanted.untempered:
        more["untempered"] = of_allowed(logits).log_softmax(-1).gather(-1, index)[:, 0]
    if wanted.sum_p_squared:
        more["sum_p_squared"] = log_probs.exp().square().sum(-1)
    if wanted.top_k:
        more["top_log_probs"], more["top_tokens"] = log_probs.topk(wanted.top_k)
    if wanted.candidates is not None:
        more["candidate_log_probs"] = log_probs.gather(-1, wanted.candidates[0])
    return replace(outputs, **more)
