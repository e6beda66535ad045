"""Count the prompts of evaluation that also occur in training."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from verl_hpc.data.messages import text_of
from verl_hpc.data.problem import Prompt, Source
from verl_hpc.data.scan import refuse, scan
from verl_hpc.data.split import digest, plain
from verl_hpc.errors import DataError
from verl_hpc.hf.pictures import Picture

KEY_BYTES = 16


@dataclass(frozen=True)
class Overlap:
    """Prompts of one evaluation set that also occur in training."""

    evaluation_rows: int
    evaluation_prompts: int
    """Number of different prompts in these rows."""
    training_rows: int
    shared_prompts: int
    """Number of different evaluation prompts that occur in training."""
    shared_training_rows: tuple[array[int], ...]
    """Rows of each training source with such a prompt, ascending."""


def count_overlap(
    training: Sequence[Source], evaluation: Source, on_bad: Callable[[DataError], None] = refuse
) -> Overlap:
    """Apply `count_overlaps` to one data set for evaluation."""
    (overlap,) = count_overlaps(training, {"data.evaluation": evaluation}, on_bad)
    return overlap


def count_overlaps(
    training: Sequence[Source],
    evaluation: Mapping[str, Source],
    on_bad: Callable[[DataError], None] = refuse,
) -> list[Overlap]:
    """Read all rows once and count the prompts that occur on both sides, for each data set for
    evaluation.

    Memory: 16 bytes and a set's entry for each prompt of evaluation, and 8 bytes for each row of
    training that has one.

    Args:
        evaluation: data sets by their name in the log.
        on_bad: called with the error of a row that cannot be used.

    Raises:
        DataError: what `on_bad` raises.
    """
    # Prompts of evaluation are kept as sets of keys, so that training is read only once.
    evaluated = [
        {prompt_key(problem.prompt, problem.images) for _, problem in scan(source, name, on_bad)}
        for name, source in evaluation.items()
    ]
    shared: list[set[bytes]] = [set() for _ in evaluated]
    shared_rows: list[list[array[int]]] = [[] for _ in evaluated]
    for source in training:
        rows = [array("q") for _ in evaluated]
        for row, problem in scan(source, "data.train", on_bad):
            key = prompt_key(problem.prompt, problem.images)
            for number, keys in enumerate(evaluated):
                if key in keys:
                    rows[number].append(row)
                    shared[number].add(key)
        for number, of_source in enumerate(rows):
            shared_rows[number].append(of_source)
    return [
        Overlap(
            evaluation_rows=len(source),
            evaluation_prompts=len(evaluated[number]),
            training_rows=sum(map(len, training)),
            shared_prompts=len(shared[number]),
            shared_training_rows=tuple(shared_rows[number]),
        )
        for number, source in enumerate(evaluation.values())
    ]


def prompt_key(prompt: Prompt, images: Sequence[Picture] = ()) -> bytes:
    """Return 16 bytes that identify a prompt by its words, and by the paths or bytes of its images.

    Runs of white space count as one space, and who says what does not count: text is the same as a
    chat with that text, however it is cut into messages.
    """
    words = prompt if isinstance(prompt, str) else text_of(prompt, between="\n")
    shown = "".join(f"\n{p.path}{sha256(p.content).hexdigest()}" for p in images)
    return digest(plain(words) + shown, KEY_BYTES)
