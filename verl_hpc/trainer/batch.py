"""A step's data: facts about samples that all ranks know, and tokens that live where they are
needed.

Per-sample facts are small and every decision is made on them, so they are the same on all ranks.
Per-token columns are unpadded and spread over ranks; which group of ranks has which sample is one
of the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

TOKENS = "tokens"
"""The column of prompt and response tokens; every other column is of response tokens."""
ROLLOUT_LOG_PROBS = "rollout_log_probs"
OLD_LOG_PROBS = "old_log_probs"
REF_LOG_PROBS = "ref_log_probs"
VALUES = "values"
ADVANTAGES = "advantages"
RETURNS = "returns"

DTYPES: Mapping[str, torch.dtype] = {
    TOKENS: torch.int64,
    ROLLOUT_LOG_PROBS: torch.float32,
    OLD_LOG_PROBS: torch.float32,
    REF_LOG_PROBS: torch.float32,
    VALUES: torch.float32,
    ADVANTAGES: torch.float32,
    RETURNS: torch.float32,
}
"""Every column there is; its type is known also to a rank that has no samples."""


@dataclass(frozen=True)
class Prompts:
    """Which rows of the data set a step answers; the same on all ranks."""

    step: int
    rows: Sequence[int]


@dataclass(frozen=True)
class Sample:
    """One prompt with one response."""

    index: int
    """Place in the step; samples of one prompt are neighbours."""
    group: int
    """Which prompt of the step it answers."""
    prompt_length: int
    response_length: int
    truncated: bool
    """Ended by its length, not by itself."""

    @property
    def length(self) -> int:
        return self.prompt_length + self.response_length


@dataclass(frozen=True)
class Samples:
    """All samples of a step, the same on every rank, and who has them under each placement."""

    samples: tuple[Sample, ...]
    owners: Mapping[str, Sequence[int]]
    """By placement, the index of the group of ranks that has each sample."""
    mini_batches: Sequence[Sequence[int]] = ()
    """Positions of the samples of each optimizer step."""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def owned_by(self, placement: str, group: int) -> list[int]:
        """Positions of one group's samples, ascending."""
        return [i for i, owner in enumerate(self.owners[placement]) if owner == group]

    @property
    def num_response_tokens(self) -> int:
        return sum(s.response_length for s in self.samples)


@dataclass
class Columns:
    """Per-token values of this rank's samples under one placement."""

    positions: Sequence[int]
    """Which samples these are (positions in `Samples`), ascending."""
    values: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """By column, one tensor per sample: (prompt + response,) for TOKENS, else (response,).

    The names are those of `DTYPES`, the same on all ranks, also on one without samples.
    """

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        return self.values[name]


def pad_rows(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """(T_i,) tensors as one right-padded (B, T) tensor; (B, 1) of zeros where all are empty."""
    width = max([len(row) for row in rows] + [1])
    padded = rows[0].new_zeros(len(rows), width)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def length_mask(lengths: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    """(B, width) float32: 1 for the first lengths[i] entries of row i."""
    ends = torch.tensor(lengths, device=device)[:, None]
    return (torch.arange(width, device=device) < ends).float()


def cut_rows(padded: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """The inverse of `pad_rows`."""
    return [row[:n] for row, n in zip(padded, lengths, strict=True)]
