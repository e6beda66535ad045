"""One row of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verl_hpc.data.messages import Message

Prompt = str | list[Message]
"""Text, or a chat list of {role, content}."""
Answer = str | list[Message]
"""A text, or the messages behind a prompt that is a chat list; the last one is the model's."""

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
    """Names the origin of the row; rewards may be chosen by it."""
    ground_truth: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    """What else a reward function may want; the row's `extra_info`."""
    answer: Answer | None = None
    """Target of supervised fine-tuning, the better answer of a pair, or the one that `label` is
    about."""
    rejected: Answer | None = None
    """The worse answer of a pair."""
    label: bool | None = None
    """Whether the answer is a good one, where kto learns from it."""
    system: str | None = None
    """A system message of the row that its prompt does not have."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """What the row gives its chat template: `tools`, and its `chat_template_kwargs`."""
    origin: str = field(default="", compare=False)
    """Where it comes from: the file, and the line or row in it."""

    columns: Callable[[], dict[str, Any]] = field(default=dict, compare=False, repr=False)
    """Reads all columns of the row, as its file has them; none of a generated task.

    Raises DataError where one of them cannot be read.
    """

    @property
    def where(self) -> str:
        """What errors call it."""
        return self.origin or f"row {self.index}"
