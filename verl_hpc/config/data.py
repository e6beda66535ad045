"""Where prompts come from, and held-out ones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.section import (
    Number,
    Options,
    PathText,
    Positive,
    Section,
    Seed,
)


class FilesConfig(Section):
    """Parquet or JSONL files with verl's columns: prompt, data_source, reward_model, ..."""

    kind: Literal["files"] = "files"
    paths: Annotated[list[PathText], Field(min_length=1)]
    """Files, read as one data set in this order; the ending (.parquet, .jsonl) says the format."""
    prompt_key: str = "prompt"
    """Column of the prompt: a string, or a chat list of {role, content}. `a.b` is field b of a."""
    answer_key: str | None = None
    """Column of the text that sft imitates, such as extra_info.answer; null takes answer, or else
    response."""
    limit: Positive | None = None
    """Use only the first rows."""


class ReasoningGymConfig(Section):
    """Procedurally generated problems that bring their own scorer."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    task: str
    """Name of a reasoning-gym data set, such as chain_sum."""
    size: Annotated[Positive, Field(le=100_000_000)]
    """Rows of the split."""
    seed: Seed = 0
    """Entry i of the task is drawn from seed + i: for other rows, give seeds further apart than
    size."""
    split: Literal["all", "train", "evaluation"] = "all"
    """Which questions: a hash of a question's text says whether it belongs to train or to
    evaluation, whatever the seed. No question of train occurs in evaluation, and no question
    occurs in evaluation twice."""
    evaluation_share: Annotated[Number, Field(ge=0.001, le=0.999)] = 0.1
    """Share of all questions that belong to evaluation; the same in every run that is to be
    compared."""
    options: Options = {}
    """Settings of the task, such as {min_terms: 2, max_terms: 2}."""
    template: Annotated[str, Field(pattern=r"\{question\}")] = "{question}"
    """How a question becomes a prompt."""


SourceConfig = Annotated[FilesConfig | ReasoningGymConfig, Field(discriminator="kind")]


class DataConfig(Section):
    """Training and evaluation problems."""

    train: SourceConfig
    """Problems to train on: files, or a generated task."""
    evaluation: SourceConfig | None = None
    """Held-out problems, answered greedily. Where evaluation.every > 0 or evaluation.at_start,
    these are needed, or evaluation.sets instead."""
    check: Literal["all", "drawn"] = "all"
    """When a row that cannot be used is an error: all reads every row of the files at start; drawn
    leaves it to the step that draws it. With an evaluation rows are read at start all the same, for
    overlap, but where splits are disjoint by construction."""
    overlap: Literal["refuse", "drop", "warn"] = "refuse"
    """What prompts do that occur in evaluation and in train: end the run at its start, leave
    train, or are told about in the log and the report."""
    shuffle: bool = True
    """A new order each epoch, from the run's seed."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Whether prompts go through the tokenizer's chat template: auto does for chat lists; never
    joins the contents of a chat list as paragraphs."""
