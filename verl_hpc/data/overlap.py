"""How many prompts of evaluation occur in training as well."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.data.messages import text_of
from verl_hpc.data.problem import Prompt
from verl_hpc.data.scan import refuse, scan
from verl_hpc.data.sources import Source
from verl_hpc.data.split import digest, plain
from verl_hpc.errors import DataError

KEY_BYTES = 16


@dataclass(frozen=True)
class Overlap:
    """What was counted."""

    evaluation_rows: int
    evaluation_prompts: int
    """Different prompts in them."""
    training_rows: int
    shared_prompts: int
    """Different prompts of evaluation that occur in training."""
    shared_training_rows: tuple[array[int], ...]
    """Rows of each training source that have one of them, ascending."""


def count_overlap(
    training: Sequence[Source],
    evaluation: Source,
    on_bad: Callable[[DataError], None] = refuse,
) -> Overlap:
    """`count_overlaps` of one data set of evaluation."""
    (found,) = count_overlaps(training, {"data.evaluation": evaluation}, on_bad)
    return found


def count_overlaps(
    training: Sequence[Source],
    evaluation: Mapping[str, Source],
    on_bad: Callable[[DataError], None] = refuse,
) -> list[Overlap]:
    """Read all rows once and count the prompts that occur on both sides, for each data set of
    evaluation.

    It holds 16 bytes and a set's entry for each prompt of evaluation, and 8 bytes for each row of
    training that has one.

    Args:
        evaluation: by what the log calls them.
        on_bad: called with what is wrong with a row that cannot be used.

    Raises:
        DataError: what `on_bad` raises.
    """
    evaluated = [
        {prompt_key(problem.prompt) for _, problem in scan(source, name, on_bad)}
        for name, source in evaluation.items()
    ]
    shared: list[set[bytes]] = [set() for _ in evaluated]
    found: list[list[array[int]]] = [[] for _ in evaluated]
    for source in training:
        rows = [array("q") for _ in evaluated]
        for row, problem in scan(source, "data.train", on_bad):
            key = prompt_key(problem.prompt)
            for number, keys in enumerate(evaluated):
                if key in keys:
                    rows[number].append(row)
                    shared[number].add(key)
        for number, of_source in enumerate(rows):
            found[number].append(of_source)
    return [
        Overlap(
            evaluation_rows=len(source),
            evaluation_prompts=len(evaluated[number]),
            training_rows=sum(map(len, training)),
            shared_prompts=len(shared[number]),
            shared_training_rows=tuple(found[number]),
        )
        for number, source in enumerate(evaluation.values())
    ]


def prompt_key(prompt: Prompt) -> bytes:
    """16 bytes that prompts of the same words have in common.

    Runs of white space count as one space, and who says what does not count: text is the same as a
    chat with that text, however it is cut into messages.
    """
    words = prompt if isinstance(prompt, str) else text_of(prompt, between="\n")
    return digest(plain(words), KEY_BYTES)
