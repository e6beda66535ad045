"""How many prompts of evaluation occur in training as well."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """Read all rows and count the prompts that occur on both sides.

    It holds 16 bytes and a set's entry for each prompt of evaluation, and 8 bytes for each row of
    training that has one.

    Args:
        on_bad: called with what is wrong with a row that cannot be used.

    Raises:
        DataError: what `on_bad` raises.
    """
    evaluated = {
        prompt_key(problem.prompt) for _, problem in scan(evaluation, "data.evaluation", on_bad)
    }
    shared: set[bytes] = set()
    found = []
    for source in training:
        rows = array("q")
        for row, problem in scan(source, "data.train", on_bad):
            key = prompt_key(problem.prompt)
            if key in evaluated:
                rows.append(row)
                shared.add(key)
        found.append(rows)
    return Overlap(
        evaluation_rows=len(evaluation),
        evaluation_prompts=len(evaluated),
        training_rows=sum(map(len, training)),
        shared_prompts=len(shared),
        shared_training_rows=tuple(found),
    )


def prompt_key(prompt: Prompt) -> bytes:
    """16 bytes that prompts of the same words have in common.

    Runs of white space count as one space, and who says what does not count: text is the same as a
    chat with that text, however it is cut into messages.
    """
    words = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)
    return digest(plain(words), KEY_BYTES)
