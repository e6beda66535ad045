"""One row of a data set, and a data set of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from verl_hpc.data.messages import Message
from verl_hpc.errors import DataError
from verl_hpc.hf.pictures import Picture

Prompt = str | list[Message]
"""Text, or a chat list of {role, content}."""
Answer = str | list[Message]
"""A text, or the messages after a prompt that is a chat list; the last one is the model's."""

PAIR_COLUMNS = ("chosen", "rejected")
"""Columns of the answers of a pair."""
LABEL_COLUMN = "label"
"""Column that says whether an answer is good."""


@dataclass(frozen=True)
class Problem:
    """A prompt, and what is needed to score a response to it or to imitate one.

    An answer is a chat list only where the prompt is one.
    """

    index: int
    """Row number in the data set, from 0."""
    prompt: Prompt
    data_source: str = ""
    """Name of the row's origin, by which rewards may be chosen."""
    ground_truth: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Further values for reward functions: the row's `extra_info`."""
    answer: Answer | None = None
    """Target of supervised fine-tuning, the better answer of a pair, or the answer that `label`
    judges."""
    rejected: Answer | None = None
    """The worse answer of a pair."""
    label: bool | None = None
    """Whether the answer is good, for kto."""
    system: str | None = None
    """A system message of the row that its prompt does not have."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the row for its chat template: `tools`, and its `chat_template_kwargs`."""
    images: tuple[Picture, ...] = ()
    """Images of the prompt, in the order of its `<image>`."""
    origin: str = field(default="", compare=False)
    """Place of the row: the file, and the line or row in it."""

    columns: Callable[[], dict[str, Any]] = field(default=dict, compare=False, repr=False)
    """Function that reads all columns of the row from its file; a generated task has none.

    Raises DataError if one of them cannot be read.
    """

    @property
    def where(self) -> str:
        """Name of the row in errors."""
        return self.origin or f"row {self.index}"


class Source(Protocol):
    """A data set; rows are read or generated when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Problem: ...

    def scan(self) -> Iterator[Problem | DataError]:
        """Check every row: yield all problems in order, with the checked fields only, and a
        DataError in place of a bad row."""
        ...
