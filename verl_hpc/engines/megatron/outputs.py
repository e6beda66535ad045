"""Outputs of a model's head for each sequence, on every rank that asked for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from verl_hpc.engines.megatron.build import VOCAB_MULTIPLE
from verl_hpc.engines.megatron.log_probs import log_probs_and_entropy
from verl_hpc.engines.megatron.packing import PackedRow
from verl_hpc.engines.megatron.parallel import LayoutGroups
from verl_hpc.engines.protocol import Head, TokenOutputs
from verl_hpc.layout.megatron import padded_vocab

_FIELDS: Mapping[Head, tuple[str, ...]] = {
    "language_model": ("log_probs", "entropy"),
    "value": ("values",),
    "score": ("scores",),
}
"""Fields of TokenOutputs that a head fills."""


class Outputs:
    """Reads and shares the outputs of one head on one layout."""

    def __init__(self, head: Head, vocab_size: int, groups: LayoutGroups) -> None:
        self._head: Head = head
        self._vocab_size = vocab_size
        self._groups = groups

    def read(
        self, tensor: torch.Tensor, row: PackedRow, temperature: float, untempered: bool
    ) -> list[TokenOutputs]:
        """Of every sequence of a row; differentiable.

        Args:
            tensor: the last stage's: logits of a vocabulary shard, or one number per token.
            row: the sequences, T tokens in all.
            temperature: divides logits.
            untempered: give log-probs at temperature 1 besides.
        """
        if self._head == "value":
            return [TokenOutputs(values=v[:-1]) for v in row.split(tensor.view(-1))]
        if self._head == "score":
            return [TokenOutputs(scores=v[-1:]) for v in row.split(tensor.view(-1))]
        tp = self._groups.layout.tp
        shard = padded_vocab(self._vocab_size, tp, VOCAB_MULTIPLE) // tp
        first = self._groups.tp.rank() * shard
        read = partial(
            log_probs_and_entropy,
            tensor.view(-1, shard),
            row.targets,
            first_row=first,
            num_rows=min(max(self._vocab_size - first, 0), shard),
            group=self._groups.tp if tp > 1 else None,
        )
        columns = dict(zip(("log_probs", "entropy"), read(temperature=temperature), strict=True))
        if untempered:
            tempered = temperature != 1.0
            columns["untempered"] = read(temperature=1.0)[0] if tempered else columns["log_probs"]
        rows = zip(*(row.split(column) for column in columns.values()), strict=True)
        return [
            TokenOutputs(**{n: v[:-1] for n, v in zip(columns, values, strict=True)})
            for values in rows
        ]

    def share(
        self,
        found: Sequence[list[TokenOutputs]],
        bins: Sequence[Sequence[int]],
        lengths: Sequence[int],
        untempered: bool,
        device: torch.device,
    ) -> list[TokenOutputs]:
        """Put outputs in the caller's order and give earlier pipeline stages the last one's.

        Args:
            found: of each micro-batch, on the last stage; empty elsewhere.
            bins: indices of each micro-batch's sequences.
            lengths: tokens of every sequence.
            untempered: as in `read`.
            device: of the outputs.
        """
        fields = [*_FIELDS[self._head], *["untempered"] * untempered]
        sizes = [1 if self._head == "score" else n - 1 for n in lengths]
        columns: dict[str, list[torch.Tensor]] = {}
        for field in fields:
            by_index: dict[int, torch.Tensor] = {}
            for indices, outputs in zip(bins, found, strict=False):
                by_index |= {i: getattr(o, field) for i, o in zip(indices, outputs, strict=True)}
            flat = (
                torch.cat([by_index[i] for i in range(len(sizes))])
                if by_index
                else torch.empty(sum(sizes), dtype=torch.float32, device=device)
            )
            if self._groups.layout.pp > 1:
                dist.broadcast(flat, self._groups.stages[-1], group=self._groups.pp)
            columns[field] = list(flat.split(sizes))
        return [
            TokenOutputs(**{field: columns[field][i] for field in fields})
            for i in range(len(sizes))
        ]


def sum_metrics(found: Sequence[Mapping[str, float]], groups: LayoutGroups) -> dict[str, float]:
    """Sum over micro-batches, then over replicas; only the last stage has any."""
    names = sorted({name for sums in found for name in sums})
    # Every last stage computes the same metrics, but a stage before it knows no names.
    shared: list[Any] = [names, [sum(s.get(n, 0.0) for s in found) for n in names]]
    if groups.layout.pp > 1:
        dist.broadcast_object_list(shared, groups.stages[-1], group=groups.pp)
    names, values = shared
    totals = torch.tensor(values, dtype=torch.float64)
    if groups.layout.dp > 1:
        dist.all_reduce(totals, group=groups.dp_gloo)
    return dict(zip(names, totals.tolist(), strict=True))
