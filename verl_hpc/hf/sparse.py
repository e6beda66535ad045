"""Sparse attention whose choice of tokens depends on nothing behind a sequence.

transformers' indexer takes the tokens of the highest scores. Scores are often equal: they are 0
where no head of the indexer finds a token of use. torch chooses among equal ones by the length of
the row, so a sequence would have other log-probs with padding than without.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _EarliestFirst(TorchFunctionMode):
    """Takes the earliest of equal elements."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func is not torch.Tensor.topk:
            return func(*args, **(kwargs or {}))
        scores, number = args
        order = scores.argsort(dim=-1, descending=True, stable=True)
        return SimpleNamespace(indices=order[..., :number])


def choose_earliest(model: torch.nn.Module) -> None:
    """Let indexers of a model take the earliest of tokens with equal scores."""
    for module in model.modules():
        if hasattr(module, "index_topk"):
            module.forward = _earliest(module.forward)  # type: ignore[method-assign]


def _earliest(forward: Any) -> Any:
    def choosing(*args: Any, **others: Any) -> Any:
        with _EarliestFirst():
            return forward(*args, **others)

    return choosing
