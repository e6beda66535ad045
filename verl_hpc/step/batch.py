"""A step's data: facts about samples, known to all ranks, and per-token columns spread over ranks.

Per-sample facts are small and decisions depend on them, so they are equal on all ranks. Per-token
columns are unpadded; which group of ranks has which sample is one of the facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from verl_hpc.config.explain import near_or_all
from verl_hpc.data.order import Position
from verl_hpc.errors import FlowError
from verl_hpc.rollout.record import SessionRecord
from verl_hpc.step.metrics import spread

TOKENS = "tokens"
MASK = "mask"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
VERSIONS = "versions"
EXPERTS = "experts"
IMAGES = "images"
OLD_LOG_PROBS = "old_log_probs"
REF_LOG_PROBS = "ref_log_probs"
ENTROPY = "entropy"
VALUES = "values"
SUM_P_SQUARED = "sum_p_squared"
TEACHER_LOG_PROBS = "teacher_log_probs"
TEACHER_TOP_TOKENS = "teacher_top_tokens"
TEACHER_TOP_LOG_PROBS = "teacher_top_log_probs"
PROCESS_REWARDS = "process_rewards"
PROGRAM_REWARDS = "program_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"
WEIGHTS = "weights"
SELECTED = "selected"

Per = Literal["sequence", "read", "token", "sample", "image_byte"]


@dataclass(frozen=True)
class Column:
    """Element type and length of a column's tensor of a sample."""

    dtype: torch.dtype
    per: Per
    """Number of elements. sequence: one per token of prompt and response; read: likewise without
    the last token, which nothing follows; token: one per token of the response; sample: one;
    image_byte: `Sample.image_bytes`. With `Columns.widths` each element is a row of several
    numbers."""


COLUMNS: dict[str, Column] = {
    TOKENS: Column(torch.int64, "sequence"),
    MASK: Column(torch.uint8, "token"),
    SELECTED: Column(torch.uint8, "token"),
    VERSIONS: Column(torch.int32, "token"),
    EXPERTS: Column(torch.uint8, "read"),
    IMAGES: Column(torch.uint8, "image_byte"),
    TEACHER_TOP_TOKENS: Column(torch.int32, "token"),
    PROGRAM_REWARDS: Column(torch.float64, "token"),
    **dict.fromkeys(
        (
            *(ROLLOUT_LOG_PROBS, OLD_LOG_PROBS, REF_LOG_PROBS, SUM_P_SQUARED),
            *(TEACHER_LOG_PROBS, TEACHER_TOP_LOG_PROBS),
            *(ENTROPY, VALUES, PROCESS_REWARDS, ADVANTAGES, RETURNS, WEIGHTS),
        ),
        Column(torch.float32, "token"),
    ),
}
"""All columns, known also to a rank without samples. MASK is 1 for a token of the response that is
trained on, 0 if the model did not write it or a correction or filter excludes it. WEIGHTS are those
of algorithm.correction. VERSIONS counts the steps that had changed the weights a token was sampled
with. EXPERTS are bytes, rows of `Architecture.routed_bytes`: where the rollout routed each token.
PROGRAM_REWARDS are those that a program wrote, and NaN at the last token if it wrote none. IMAGES
are those of the prompt (`hf.pictures.packed`), in runs whose model reads images.
"""


def add_column(name: str, dtype: torch.dtype = torch.float32, per: Per = "token") -> str:
    """Register a column for operators of a user's file; return its name.

    Raises:
        FlowError: a different column of that name exists.
    """
    column = Column(dtype, per)
    if COLUMNS.setdefault(name, column) != column:
        raise FlowError(f"column {name!r} is {COLUMNS[name]} already; choose another name")
    return name


@dataclass(frozen=True)
class StepRows:
    """Rows of the data set for a step, equal on all ranks."""

    step: int
    rows: Sequence[int]
    upcoming: Sequence[StepRows] = ()
    """Rows of the next steps, whose responses may be started already."""
    behind: Position | None = None
    """Position in the training data after these rows, for an operator that takes more rows."""
    task: str = ""
    """Task whose data set has the rows, in a run with several."""


@dataclass(frozen=True)
class Sample:
    """One prompt with one response."""

    index: int
    """Position in the step; samples of one prompt are neighbours."""
    group: int
    """Index of its prompt within the step."""
    prompt_length: int
    response_length: int
    truncated: bool
    """Whether the length limit ended it."""
    image_bytes: int = 0
    """Bytes of its prompt's images (IMAGES)."""

    @property
    def length(self) -> int:
        return self.prompt_length + self.response_length

    def count(self, per: Per) -> int:
        """Return the number of elements of a column (`Column.per`)."""
        if per == "token":
            return self.response_length
        if per == "image_byte":
            return self.image_bytes
        return 1 if per == "sample" else self.length - (per == "read")


@dataclass(frozen=True)
class Samples:
    """All samples of a step, equal on every rank, and which ranks have them under each
    placement."""

    samples: tuple[Sample, ...]
    owners: Mapping[str, Sequence[int]]
    """Index of the group of ranks that has each sample, by placement."""
    mini_batches: Sequence[Sequence[int]] = ()
    """Positions of the samples of each optimizer step of an update epoch."""
    later_epochs: Sequence[Sequence[Sequence[int]]] = ()
    """Mini-batches of each epoch after the first, if they are reshuffled."""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def all_epochs(self, count: int) -> list[Sequence[int]]:
        """Return the mini-batches of `count` update epochs, concatenated."""
        later = self.later_epochs or [self.mini_batches] * (count - 1)
        assert len(later) >= count - 1
        epochs = [self.mini_batches, *later][:count]
        return [members for epoch in epochs for members in epoch]

    def owned_by(self, placement: str, group: int) -> list[int]:
        """Return the positions of one group's samples, ascending."""
        return [i for i, owner in enumerate(self.owners[placement]) if owner == group]


@dataclass(frozen=True)
class Scores:
    """Scores of all samples of a step, equal on every rank."""

    values: Sequence[float]
    """Score of each sample, by position."""
    num_failed: int = 0
    """Calls of the reward function that failed and scored 0."""
    details: Sequence[Mapping[str, float]] = ()
    """Further numbers that the reward function returned of each sample, by position."""
    per_token: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Rewards of a response's tokens by their index, by position, if the reward function returned a
    list. The last token gets the rest of the response's value."""

    @property
    def metrics(self) -> dict[str, float]:
        metrics, numbers = spread("critic/score", self.values), defaultdict(list)
        for of_one in self.details:
            for name, value in of_one.items():
                numbers[name].append(value)
        metrics |= {f"reward/{name}": sum(v) / len(v) for name, v in sorted(numbers.items())}
        if self.num_failed:
            metrics["reward/num_failed"] = float(self.num_failed)
        return metrics


@dataclass
class Columns:
    """Per-token values of this rank's samples under one placement."""

    positions: Sequence[int]
    """Positions of these samples in `Samples`, ascending."""
    values: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """One tensor per sample, by column, of the shape and type in `COLUMNS`.

    The names are equal on all ranks, including ranks without samples.
    """
    widths: dict[str, int] = field(default_factory=dict)
    """Width of columns whose tensors are (T, width); equal on all ranks."""
    records: Mapping[int, SessionRecord] = field(default_factory=dict)
    """Sessions with programs and environments, by position, on the ranks that generated them. They
    do not move with the columns."""

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        return self.values[name]

    def responses(self, samples: Samples) -> list[torch.Tensor]:
        """Return the tokens of the responses, without prompts."""
        return [
            tokens[samples.samples[i].prompt_length :]
            for i, tokens in zip(self.positions, self.values[TOKENS], strict=True)
        ]

    def check(self, samples: Samples) -> None:
        """Raises: FlowError: a column is not in `COLUMNS`, or its shape differs from that."""
        for name, rows in self.values.items():
            if name not in COLUMNS:
                raise FlowError(
                    f"column {name!r} has no type, so ranks without samples could not take part in "
                    f"moving it; make it known with verl_hpc.step.batch.add_column; "
                    f"{near_or_all(name, COLUMNS)}"
                )
            width, per = self.widths.get(name), COLUMNS[name].per
            for position, row in zip(self.positions, rows, strict=True):
                length = samples.samples[position].count(per)
                shape = (length,) if width is None else (length, width)
                if row.shape != shape:
                    raise FlowError(
                        f"column {name!r} of sample {position} has shape {tuple(row.shape)}, "
                        f"expected {shape}; give one row a {per}, and Columns(..., "
                        f"widths={{{name!r}: N}}) where a row is N numbers"
                    )

    def copy_to(self, device: torch.device) -> Columns:
        """Copy to a device in the types of `COLUMNS`, with one copy for each column."""
        values: dict[str, list[torch.Tensor]] = {}
        for name, rows in self.values.items():
            values[name] = []
            if rows:
                joined = torch.cat(rows).to(device, COLUMNS[name].dtype)
                values[name] = list(joined.split([*map(len, rows)]))
        return Columns(self.positions, values, self.widths)


def as_bytes(content: bytes) -> torch.Tensor:
    """Return bytes as (n,) uint8, in host memory."""
    return torch.frombuffer(bytearray(content) or bytearray(1), dtype=torch.uint8)[: len(content)]


def pad_rows(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pad (T_i, ...) tensors at the right to one (B, T, ...) tensor; T is 1 if all are empty."""
    longest = max(1, *map(len, rows))
    padded = rows[0].new_zeros(len(rows), longest, *rows[0].shape[1:])
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def padded(rows: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Pad rows for operators: (0, 1) on a rank without samples, which still takes part in sums;
    float64 stays, other types become float32."""
    if not rows:
        return torch.zeros(0, 1, device=device)
    values = pad_rows(rows).to(device)
    return values if values.dtype == torch.float64 else values.float()


def cut_rows(padded: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Invert `pad_rows`."""
    return [row[:n] for row, n in zip(padded, lengths, strict=True)]
