"""Settings of training and evaluation data."""

from __future__ import annotations

from math import fsum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from verl_hpc.section import (
    Fraction,
    Number,
    Options,
    OwnName,
    PathText,
    Positive,
    Section,
    Seed,
    chosen_by,
    is_own,
)

TrainOn = Literal["all", "last"]


class FilesConfig(Section):
    """Parquet or JSONL files with verl's columns: prompt, data_source, reward_model, ..."""

    kind: Literal["files"] = "files"
    paths: Annotated[list[PathText], Field(min_length=1)]
    """Files, read as one data set in this order; the ending (.parquet, .jsonl) says the format."""
    prompt_key: str = "prompt"
    """Column of the prompt: a string, or a chat list of {role, content}. `a.b` is field b of a.
    Where it is not set, a row may have its prompt in messages or conversations, or in chosen and
    rejected (docs/data.md)."""
    answer_key: str | None = None
    """Column of the answer that sft imitates or kto judges, such as extra_info.answer; null takes
    messages, conversations, answer, response or completion, the first that a row has."""
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
    """The questions to use: a hash of a question's text decides whether it belongs to train or to
    evaluation, whatever the seed. No question of train occurs in evaluation, and no question occurs
    in evaluation twice."""
    evaluation_share: Annotated[Number, Field(ge=0.001, le=0.999)] = 0.1
    """Share of all questions that belong to evaluation; the same in every run that is to be
    compared."""
    options: Annotated[Options, chosen_by("task")] = {}
    """Settings of the task, such as {min_terms: 2, max_terms: 2}."""
    template: Annotated[str, Field(pattern=r"\{question\}")] = "{question}"
    """How a question becomes a prompt."""


class OwnSourceConfig(Section):
    """Rows that a class of the user's gives."""

    kind: Literal["source"] = "source"
    path: OwnName
    """path/to/file.py:Class. Its method rows() gives mappings with verl's columns, one after
    another. They are written to the run directory when the run starts for the first time
    (docs/data.md)."""
    limit: Positive | None = None
    """Take only the first rows, as of a source that does not end."""

    @model_validator(mode="after")
    def _names_a_class(self) -> OwnSourceConfig:
        if not is_own(self.path):
            raise ValueError(f"path = {self.path!r}: expected path/to/file.py:Class")
        return self


SourceConfig = Annotated[
    FilesConfig | ReasoningGymConfig | OwnSourceConfig, Field(discriminator="kind")
]
SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=40)]
"""Name of a data set in metrics."""


class WeightedSetConfig(Section):
    """One of several data sets that a batch is drawn from."""

    source: SourceConfig
    """Problems of the set: files, or a generated task."""
    weight: Annotated[Fraction, Field(gt=0.0)] | None = None
    """Share of the rows that are drawn. The weights of all sets sum to 1; null in all of them gives
    equal shares."""


class MixedConfig(Section):
    """Several data sets whose rows are mixed in every batch."""

    kind: Literal["mix"] = "mix"
    sets: Annotated[dict[SetName, WeightedSetConfig], Field(min_length=1)]
    """Data sets by name. Metrics of a set are set/NAME/... (docs/data.md)."""

    @property
    def weights(self) -> dict[str, float]:
        """Share of each set; they sum to 1."""
        equal = 1 / len(self.sets)
        return {n: equal if s.weight is None else s.weight for n, s in self.sets.items()}

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> MixedConfig:
        given = [name for name, chosen in self.sets.items() if chosen.weight is not None]
        if given and len(given) < len(self.sets):
            name = next(name for name in self.sets if name not in given)
            raise ValueError(
                f"sets.{name}: has no weight, and {given[0]} has one; give all sets a weight, or "
                "none"
            )
        total = fsum(self.weights.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"sets: the weights of {', '.join(self.sets)} sum to {total:g}; expected a sum of 1"
            )
        return self


TrainConfig = Annotated[
    FilesConfig | ReasoningGymConfig | OwnSourceConfig | MixedConfig, Field(discriminator="kind")
]


def single_sources(source: TrainConfig, setting: str = "") -> dict[str, SourceConfig]:
    """Return a data set, or the sets of a mix, by their setting."""
    if not isinstance(source, MixedConfig):
        return {setting: source}
    return {f"{setting}.sets.{name}.source": s.source for name, s in source.sets.items()}


class DataConfig(Section):
    """Training and evaluation problems."""

    train: TrainConfig
    """Problems to train on: files, a generated task, a class of yours, or a mix of several."""
    evaluation: SourceConfig | None = None
    """Held-out problems, answered greedily. Where evaluation.every > 0 or evaluation.at_start,
    these are needed, or evaluation.sets instead."""
    check: Literal["all", "drawn"] = "all"
    """When a row that cannot be used is an error: all reads every row of the files at start; drawn
    leaves it to the step that draws it. With an evaluation rows are read at start all the same, for
    overlap, but where splits are disjoint by construction."""
    overlap: Literal["refuse", "drop", "warn"] = "refuse"
    """Treatment of prompts that occur in both evaluation and train: end the run at its start, drop
    them from train, or warn in the log and the report."""
    shuffle: bool = True
    """A new order each epoch, from the run's seed."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Whether prompts go through the tokenizer's chat template: auto does for chat lists; never
    joins the contents of a chat list as paragraphs."""
    chat_template_kwargs: Options = {}
    """Arguments of the chat template besides the messages, such as {enable_thinking: false}. A
    row's own chat_template_kwargs override them."""
    system_prompt: Annotated[str, Field(min_length=1)] | None = None
    """A system message for every chat that begins with none."""
    train_on: TrainOn = "all"
    """The answers of a conversation that sft imitates: all of the assistant's messages, or its last
    one, with what was said before as the prompt."""

    @model_validator(mode="after")
    def _template_is_used(self) -> DataConfig:
        if self.chat == "never":
            self._check_unchanged(("chat_template_kwargs", "system_prompt"), "chat: never")
        return self
