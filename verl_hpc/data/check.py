"""Check data before anything is built: for bad rows, and for prompts in both evaluation and
training."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from verl_hpc.config.data import (
    DataConfig,
    FilesConfig,
    MixedConfig,
    ReasoningGymConfig,
    SourceConfig,
    TrainConfig,
    single_sources,
)
from verl_hpc.data.messages import text_of
from verl_hpc.data.overlap import Overlap, count_overlaps
from verl_hpc.data.problem import Problem, Source
from verl_hpc.data.scan import scan
from verl_hpc.errors import DataError

SHOWN = 3
"""Most bad rows, or files, that a message names."""


@dataclass(frozen=True)
class HeldOut:
    """A data set for evaluation."""

    name: str
    """Name in errors: its setting."""
    config: SourceConfig
    source: Source


@dataclass(frozen=True)
class Checked:
    """Findings of the check; empty where nothing had to be read."""

    facts: Mapping[str, int] = field(default_factory=dict)
    """Counts of evaluation's rows and prompts, for the report."""
    dropped: array[int] = field(default_factory=lambda: array("q"))
    """Rows to drop from training, ascending."""
    warning: str = ""


def check_data(
    config: DataConfig, training: Source, evaluation: Sequence[HeldOut], setting: str = "data.train"
) -> Checked:
    """Read all rows, as far as `config` asks for it. One rank does this for all.

    Args:
        setting: names the training data in messages.

    Raises:
        DataError: rows that cannot be used, if data.check is all; prompts on both sides, if
            data.overlap is refuse; no row that would be left for training.
    """
    bad = _BadRows() if config.check == "all" else None
    if not evaluation:
        parts = single_sources(config.train).values()
        if bad is not None and not all(isinstance(part, ReasoningGymConfig) for part in parts):
            for _ in scan(training, setting, bad.note):
                pass
            bad.raise_if_any()
        return Checked()
    # Splits that cannot overlap are only checked for bad rows; all others are compared.
    compared = []
    for held_out in evaluation:
        if not _disjoint_by_construction(config.train, held_out.config):
            compared.append(held_out)
        elif bad is not None:
            for _ in scan(held_out.source, held_out.name, bad.note):
                pass
    sources = {held_out.name: held_out.source for held_out in compared}
    counted = count_overlaps([training], sources, bad.note if bad else _ignore) if sources else []
    if bad is not None:
        bad.raise_if_any()
    by_name = dict(zip(sources, counted, strict=True))
    overlaps = [by_name.get(h.name) or _nothing_shared(training, h.source) for h in evaluation]
    return _judge(config, training, evaluation, overlaps, setting)


def _nothing_shared(training: Source, evaluation: Source) -> Overlap:
    num_rows = len(evaluation)
    return Overlap(num_rows, num_rows, len(training), 0, (array("q"),))


def _judge(
    config: DataConfig,
    training: Source,
    evaluation: Sequence[HeldOut],
    overlaps: Sequence[Overlap],
    setting: str,
) -> Checked:
    pairs = list(zip(evaluation, overlaps, strict=True))
    rows = array(
        "q", sorted({row for overlap in overlaps for row in overlap.shared_training_rows[0]})
    )
    dropped = rows if config.overlap == "drop" else array("q")
    warning = "; ".join(
        _describe(config, training[overlap.shared_training_rows[0][0]], held_out, overlap, setting)
        for held_out, overlap in pairs
        if overlap.shared_prompts
    )
    if rows:
        if config.overlap == "refuse":
            raise DataError(f"{warning}. {_advice(config, evaluation, setting)}")
        if len(dropped) == len(training):
            raise DataError(f"{warning}: data.overlap = drop leaves no row; give other files")
        warning += "; these rows leave training" if dropped else "; they stay in training"
    facts = {
        "rows": sum(overlap.evaluation_rows for overlap in overlaps),
        "different prompts": sum(overlap.evaluation_prompts for overlap in overlaps),
        "prompts found in training": sum(overlap.shared_prompts for overlap in overlaps),
        "rows dropped from training": len(dropped),
    }
    if len(overlaps) > 1:
        facts |= {f"rows of {held_out.name}": o.evaluation_rows for held_out, o in pairs}
    return Checked(facts, dropped, warning)


def _describe(
    config: DataConfig, example: Problem, held_out: HeldOut, overlap: Overlap, setting: str
) -> str:
    text = example.prompt if isinstance(example.prompt, str) else text_of(example.prompt[-1:])
    return (
        f"{overlap.shared_prompts:,} of the {overlap.evaluation_prompts:,} different prompts of "
        f"{held_out.name} ({_named(held_out.config)}) occur in {setting} "
        f"({_named(config.train)}), in {len(overlap.shared_training_rows[0]):,} of its "
        f"{overlap.training_rows:,} rows; the first is {example.where}: {text!r:.100}"
    )


def _advice(config: DataConfig, evaluation: Sequence[HeldOut], setting: str) -> str:
    other = "set data.overlap to drop (these rows leave training) or to warn"
    if isinstance(config.train, ReasoningGymConfig):
        names = " and ".join(held_out.name for held_out in evaluation)
        return f"Set split: train in {setting} and split: evaluation in {names}; or {other}"
    return f"Give other files; or {other}"


def _named(config: TrainConfig) -> str:
    if isinstance(config, MixedConfig):
        return f"the sets {', '.join(config.sets)}"
    if isinstance(config, ReasoningGymConfig):
        return f"{config.task}, split: {config.split}"
    assert isinstance(config, FilesConfig), "rows of a class are in a file"
    more = len(config.paths) - SHOWN
    return ", ".join(config.paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _disjoint_by_construction(train: TrainConfig, evaluation: SourceConfig) -> bool:
    return isinstance(evaluation, ReasoningGymConfig) and all(
        isinstance(source, ReasoningGymConfig)
        and (source.split, evaluation.split) == ("train", "evaluation")
        and source.evaluation_share == evaluation.evaluation_share
        for source in single_sources(train).values()
    )


class _BadRows:
    """The first rows that cannot be used, and the number of all of them."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._count = 0

    def note(self, error: DataError) -> None:
        self._count += 1
        if len(self._first) < SHOWN and str(error) not in self._first:
            self._first.append(str(error))

    def raise_if_any(self) -> None:
        if self._count == 1:
            raise DataError(self._first[0])
        if self._count:
            raise DataError(
                f"{self._count:,} rows cannot be used, the first of them:\n  "
                + "\n  ".join(self._first)
                + "\nmend or remove them, or set data.check to drawn to meet each when it is drawn"
            )


def _ignore(error: DataError) -> None:
    """Under data.check = drawn a bad row is an error only when it is drawn."""


class WithCheck:
    """A data set whose scan asks more of a row.

    Args:
        check: raises DataError for a row that cannot be used.
        most: number of first rows to check; None checks all.
    """

    def __init__(
        self, source: Source, check: Callable[[Problem], None], most: int | None = None
    ) -> None:
        self._source = source
        self._check = check
        self._most = most

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Problem:
        return self._source[index]

    def scan(self) -> Iterator[Problem | DataError]:
        """Yield what `Source.scan` does."""
        for row, item in enumerate(self._source.scan()):
            try:
                if isinstance(item, Problem) and (self._most is None or row < self._most):
                    self._check(item)
                yield item
            except DataError as error:
                yield error


class WithoutRows:
    """A data set without some of its rows.

    Args:
        dropped: their numbers, ascending.
    """

    def __init__(self, source: Source, dropped: array[int]) -> None:
        self._source = source
        self._stays = bytearray(b"\1") * len(source)
        for row in dropped:
            self._stays[row] = 0
        self._kept = array("q", compress(range(len(source)), self._stays))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Problem:
        if not 0 <= index < len(self._kept):
            raise IndexError(index)
        return replace(self._source[self._kept[index]], index=index)

    def scan(self) -> Iterator[Problem | DataError]:
        """Yield what `Source.scan` does."""
        return compress(self._source.scan(), self._stays)
