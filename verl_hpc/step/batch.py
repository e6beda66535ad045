"""A step's data: facts about samples that all ranks know, and tokens that live where they are
needed.

Per-sample facts are small and every decision is made on them, so they are the same on all ranks.
Per-token columns are unpadded and spread over ranks; which group of ranks has which sample is one
of the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from verl_hpc.data.order import Position
from verl_hpc.errors import FlowError

TOKENS = "tokens"
MASK = "mask"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
VERSIONS = "versions"
EXPERTS = "experts"
ALLOWED = "allowed"
OLD_LOG_PROBS = "old_log_probs"
REF_LOG_PROBS = "ref_log_probs"
ENTROPY = "entropy"
VALUES = "values"
SUM_P_SQUARED = "sum_p_squared"
TEACHER_LOG_PROBS = "teacher_log_probs"
TEACHER_TOP_TOKENS = "teacher_top_tokens"
TEACHER_TOP_LOG_PROBS = "teacher_top_log_probs"
PROCESS_REWARDS = "process_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"
WEIGHTS = "weights"
SELECTED = "selected"

Per = Literal["sequence", "read", "token", "sample"]


@dataclass(frozen=True)
class Column:
    """What a column holds of a sample."""

    dtype: torch.dtype
    per: Per
    """sequence: an element a token of prompt and response; read: the same but for the last token,
    which nothing follows; token: one a token of the response; sample: one. Where `Columns.widths`
    says so, each is a row of several."""


COLUMNS: dict[str, Column] = {
    TOKENS: Column(torch.int64, "sequence"),
    MASK: Column(torch.uint8, "token"),
    SELECTED: Column(torch.uint8, "token"),
    VERSIONS: Column(torch.int32, "token"),
    EXPERTS: Column(torch.uint8, "read"),
    ALLOWED: Column(torch.uint8, "token"),
    TEACHER_TOP_TOKENS: Column(torch.int32, "token"),
    **dict.fromkeys(
        (
            *(ROLLOUT_LOG_PROBS, OLD_LOG_PROBS, REF_LOG_PROBS, SUM_P_SQUARED),
            *(TEACHER_LOG_PROBS, TEACHER_TOP_LOG_PROBS),
            *(ENTROPY, VALUES, PROCESS_REWARDS, ADVANTAGES, RETURNS, WEIGHTS),
        ),
        Column(torch.float32, "token"),
    ),
}
"""Every column there is; what it holds is known also to a rank that has no samples. MASK is 1 where
a token of the response is trained on, 0 where somebody else than the model wrote it, or where a
correction or filter leaves it out. WEIGHTS are those of algorithm.correction. VERSIONS is how many
steps had changed the weights that a token was sampled with. EXPERTS are bytes, rows of
`Architecture.routed_bytes`: where the rollout routed each token. ALLOWED are bytes, too: the
tokens that a constraint let each one be chosen from, as `Wanted.allowed`."""


def add_column(name: str, dtype: torch.dtype = torch.float32, per: Per = "token") -> str:
    """Make a column known, for operators of a user's file; gives its name.

    Raises:
        FlowError: there is another one of that name.
    """
    column = Column(dtype, per)
    if COLUMNS.setdefault(name, column) != column:
        raise FlowError(f"column {name!r} is {COLUMNS[name]} already; choose another name")
    return name


@dataclass(frozen=True)
class StepRows:
    """Which rows of the data set a step is about; the same on all ranks."""

    step: int
    rows: Sequence[int]
    upcoming: Sequence[StepRows] = ()
    """Of the next steps, whose responses may be begun."""
    behind: Position | None = None
    """Of the training data behind these rows, for an operator that asks for more of it."""


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
    """Positions of the samples of each optimizer step of an update epoch."""
    later_epochs: Sequence[Sequence[Sequence[int]]] = ()
    """The same of the epochs after the first, where they are dealt anew."""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def all_epochs(self, count: int) -> list[Sequence[int]]:
        """The mini-batches of so many update epochs, one after the other."""
        later = self.later_epochs or [self.mini_batches] * (count - 1)
        assert len(later) >= count - 1
        epochs = [self.mini_batches, *later][:count]
        return [members for epoch in epochs for members in epoch]

    def owned_by(self, placement: str, group: int) -> list[int]:
        """Positions of one group's samples, ascending."""
        return [i for i, owner in enumerate(self.owners[placement]) if owner == group]


@dataclass
class Columns:
    """Per-token values of this rank's samples under one placement."""

    positions: Sequence[int]
    """Which samples these are (positions in `Samples`), ascending."""
    values: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """By column, one tensor per sample, as `COLUMNS` says.

    The names are the same on all ranks, also on one without samples.
    """
    widths: dict[str, int] = field(default_factory=dict)
    """Elements of a row of those columns whose tensors are (T, width); the same on all ranks."""

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        return self.values[name]

    def responses(self, samples: Samples) -> list[torch.Tensor]:
        """Tokens of the responses alone."""
        return [
            tokens[samples.samples[i].prompt_length :]
            for i, tokens in zip(self.positions, self.values[TOKENS], strict=True)
        ]


def pad_rows(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """(T_i, ...) tensors as one right-padded (B, T, ...) tensor; T is 1 where all are empty."""
    longest = max([len(row) for row in rows] + [1])
    padded = rows[0].new_zeros(len(rows), longest, *rows[0].shape[1:])
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def padded(rows: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """`pad_rows` for operators: (0, 1) on a rank that has no samples and takes part in sums; what
    is not float64 becomes float32."""
    if not rows:
        return torch.zeros(0, 1, device=device)
    found = pad_rows(rows).to(device)
    return found if found.dtype == torch.float64 else found.float()


def cut_rows(padded: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """The inverse of `pad_rows`."""
    return [row[:n] for row, n in zip(padded, lengths, strict=True)]
