"""Outputs of a model's head for each sequence, on every rank that asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from verl_hpc.engines.protocol import NOTHING_MORE, Head, OutputOptions, Sums, TokenOutputs
from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.engines.shared.log_probs import likeliest_tokens, log_probs_and_entropy, sum_p_squared
from verl_hpc.engines.shared.packing import PackedRow
from verl_hpc.layout.megatron import padded_vocab

_Field = tuple[torch.dtype, tuple[int, ...]]
"""Element type, and shape per token, so that every pipeline stage can receive a field."""


def _fields(head: Head, wanted: OutputOptions) -> dict[str, _Field]:
    """Return the fields of TokenOutputs that a head fills, by name."""
    more = replace(wanted, images=None) != NOTHING_MORE
    assert head == "language_model" or not more, f"a {head} has nothing more"
    number: _Field = (torch.float32, ())
    if head != "language_model":
        return {f"{head}s": number}
    filled = {"log_probs": number, "entropy": number}
    filled |= {name: number for name in ("untempered", "sum_p_squared") if getattr(wanted, name)}
    if wanted.top_k:
        filled["top_tokens"] = torch.int64, (wanted.top_k,)
        filled["top_log_probs"] = torch.float32, (wanted.top_k,)
    if wanted.candidates:
        filled["candidate_log_probs"] = torch.float32, wanted.candidates[0].shape[-1:]
    return filled


class Outputs:
    """Reads and shares the outputs of one head on one layout.

    Args:
        head: the model's output layer.
        vocab_size: tokens of the vocabulary, without padding.
        groups: the layout's process groups.
        vocab_multiple: the output layer's rows, over all tensor-parallel ranks, are padded to a
            multiple of this and of their number.
        exact: whether log-probs have the bits of a softmax over the whole vocabulary, which is then
            gathered, some tokens at a time.
    """

    def __init__(
        self,
        head: Head,
        vocab_size: int,
        groups: LayoutGroups,
        vocab_multiple: int,
        exact: bool = False,
    ) -> None:
        self._exact = exact
        self._head: Head = head
        self._vocab_size = vocab_size
        self._groups = groups
        self._shard = padded_vocab(vocab_size, groups.layout.tp, vocab_multiple) // groups.layout.tp

    def read(
        self, tensor: torch.Tensor, row: PackedRow, temperature: float, wanted: OutputOptions
    ) -> list[TokenOutputs]:
        """Return the outputs of every sequence of a row; differentiable.

        Args:
            tensor: the last stage's output for this rank's tokens: logits of a vocabulary shard, or
                one number per token.
            row: the sequences, T tokens in all.
            temperature: divides logits.
            wanted: further outputs of these sequences.
        """
        if self._head == "value":
            return [TokenOutputs(values=v[:-1]) for v in row.split(row.whole(tensor.view(-1)))]
        if self._head == "score":
            return [TokenOutputs(scores=v[-1:]) for v in row.split(row.whole(tensor.view(-1)))]
        columns = self._of_tokens(tensor, row, temperature, wanted)
        rows = zip(*(row.split(row.whole(column)) for column in columns.values()), strict=True)
        return [
            TokenOutputs(**{n: v[:-1] for n, v in zip(columns, values, strict=True)})
            for values in rows
        ]

    def _of_tokens(
        self, tensor: torch.Tensor, row: PackedRow, temperature: float, wanted: OutputOptions
    ) -> dict[str, torch.Tensor]:
        """Return a language model's outputs of this rank's T tokens, (T,) or (T, k)."""
        tp = self._groups.layout.tp
        shard, first = self._shard, self._groups.tp.rank() * self._shard
        logits, group = tensor.view(-1, shard), self._groups.tp if tp > 1 else None
        num_rows = min(max(self._vocab_size - first, 0), shard)
        read = partial(
            log_probs_and_entropy,
            logits,
            first_row=first,
            num_rows=num_rows,
            group=group,
            vocabulary=self._vocab_size if self._exact else None,
        )
        columns: dict[str, torch.Tensor] = {}
        named: dict[str, torch.Tensor] = {}
        if wanted.top_k:
            columns["top_tokens"] = named["top_log_probs"] = likeliest_tokens(
                logits, wanted.top_k, first_row=first, num_rows=num_rows, group=group
            )
        if wanted.candidates is not None:
            named["candidate_log_probs"] = row.local(row.join(wanted.candidates))
        next_tokens = row.local(row.targets)
        # One pass for all tokens whose log-probs are asked for.
        targets = torch.cat([next_tokens[:, None], *named.values()], dim=-1)
        log_probs, columns["entropy"] = read(targets, temperature=temperature)
        columns["log_probs"] = log_probs[:, 0]
        sizes = [tokens.shape[-1] for tokens in named.values()]
        columns |= zip(named, log_probs[:, 1:].split(sizes, dim=-1), strict=True)
        if wanted.untempered:
            tempered = temperature != 1.0
            columns["untempered"] = (
                read(next_tokens, temperature=1.0)[0] if tempered else columns["log_probs"]
            )
        if wanted.sum_p_squared:
            columns["sum_p_squared"] = sum_p_squared(
                logits, num_rows=num_rows, temperature=temperature, group=group
            )
        return columns

    def share(
        self,
        found: Sequence[list[TokenOutputs]],
        bins: Sequence[Sequence[int]],
        lengths: Sequence[int],
        wanted: OutputOptions,
        device: torch.device,
    ) -> list[TokenOutputs]:
        """Put outputs in the caller's order, and broadcast the last pipeline stage's to the others.

        Args:
            found: outputs of each micro-batch on the last stage; empty elsewhere.
            bins: indices of each micro-batch's sequences.
            lengths: tokens of every sequence.
            wanted: further outputs of all sequences.
            device: device of the outputs.
        """
        sizes = [1 if self._head == "score" else n - 1 for n in lengths]
        columns: dict[str, list[torch.Tensor]] = {}
        for name, (dtype, shape) in _fields(self._head, wanted).items():
            by_index: dict[int, torch.Tensor] = {}
            for indices, outputs in zip(bins, found, strict=False):
                of_bin = zip(indices, outputs, strict=True)
                by_index |= {i: getattr(o, name) for i, o in of_bin}
            flat = (
                torch.cat([by_index[i] for i in range(len(sizes))])
                if by_index
                else torch.empty(sum(sizes), *shape, dtype=dtype, device=device)
            )
            if self._groups.layout.pp > 1:
                dist.broadcast(flat, self._groups.stages[-1], group=self._groups.pp)
            columns[name] = list(flat.split(sizes))
        return [
            TokenOutputs(**{name: rows[i] for name, rows in columns.items()})
            for i in range(len(sizes))
        ]


def sum_metrics(found: Sequence[Sums], groups: LayoutGroups) -> dict[str, float]:
    """Sum metrics over micro-batches, then over replicas; only the last stage has any."""
    mine = _read_sums(found)
    names = sorted(mine)
    # Every last stage computes the same metrics, but a stage before it knows no names.
    shared: list[Any] = [names, [mine[name] for name in names]]
    if groups.layout.pp > 1:
        dist.broadcast_object_list(shared, groups.stages[-1], group=groups.pp)
    names, values = shared
    mine = dict(zip(names, values, strict=True))
    if groups.layout.num_replicas > 1:
        # A replica without a sequence of this step knows no names either.
        of_all: list[list[str]] = [[]] * groups.layout.num_replicas
        dist.all_gather_object(of_all, names, group=groups.replicas_gloo)
        names = sorted({name for of_rank in of_all for name in of_rank})
    totals = torch.tensor([mine.get(name, 0.0) for name in names], dtype=torch.float64)
    if groups.layout.num_replicas > 1:
        dist.all_reduce(totals, group=groups.replicas_gloo)
    return dict(zip(names, totals.tolist(), strict=True))


def _read_sums(found: Sequence[Sums]) -> dict[str, float]:
    """Sum over micro-batches; the host waits for the device once."""
    flat = [(name, value) for sums in found for name, value in sums.items()]
    values = torch.stack([value.double() for _, value in flat]).tolist() if flat else []
    totals = dict.fromkeys((name for name, _ in flat), 0.0)
    for (name, _), value in zip(flat, values, strict=True):
        totals[name] += value
    return totals
