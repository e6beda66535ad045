"""Responses as columns of an HDF5 file, and the files of an interrupted rollout's finished ones.

    lengths      (n,) int64, tokens of each response
    ends         (n,) uint8, why it ended: the place in `_ENDS`
    tokens       (sum of lengths,) int32
    log_probs    (sum of lengths,) float32
    sampled      (sum of lengths,) uint8, 1 where the model sampled a token
    versions     (sum of lengths,) int32, of the weights that sampled it; -1 where none is recorded

Where an engine gives experts, their rows follow:

    experts      (sum of rows, bytes) uint8
    experts_rows (n,) int64, rows of each response; -1 where it has none
    experts_form (2 or 3,) int64: bytes of an element, then the shape of a row

Where responses are those of programs, their branches follow, those of one after those of another:

    branch_*                 the columns above
    episode_branches         (n,) int64, branches of each response; 0 where it is of no program
    episode_scores           (n,) float64, NaN where there is none
    episode_prompt_lengths, episode_prompts      int64, the prompt of each branch
    episode_num_rewards, episode_rewarded        int64, where each branch has rewards
    episode_rewards          float64

A replica's finished responses are in the directory of the step that generated them. These files are
not part of the step: they are written after its manifest, and deleted with it.

    step_00000006/rollout/replica_00003.h5
        key         attribute: what they answer, and how; other responses are of no use
        slots       (n,) int64
        ...         the columns
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch

from verl_hpc.checkpoint.damage import reading
from verl_hpc.checkpoint.datasets import open_file, read_dataset
from verl_hpc.checkpoint.tensor_file import write_tensors
from verl_hpc.errors import CheckpointError
from verl_hpc.rollout.protocol import Branch, Episode, Response

_ENDS: tuple[Literal["unfinished", "stop", "length"], ...] = ("unfinished", "stop", "length")
_BRANCH, _EPISODE = "branch_", "episode_"
_TYPES = {1: np.uint8, 2: np.uint16}
_DIRECTORY = "rollout"
_KEY = "key"


def response_columns(responses: Sequence[Response]) -> dict[str, torch.Tensor]:
    """Return responses as the tensors that `responses_in` reads from a file."""
    columns = {
        "lengths": torch.tensor([len(r.tokens) for r in responses], dtype=torch.int64),
        "ends": torch.tensor([_ENDS.index(r.finish_reason) for r in responses], dtype=torch.uint8),
        "tokens": torch.tensor([t for r in responses for t in r.tokens], dtype=torch.int32),
        "log_probs": torch.tensor([p for r in responses for p in r.log_probs], dtype=torch.float32),
        "sampled": torch.tensor([m for r in responses for m in r.sampled], dtype=torch.uint8),
        "versions": torch.tensor(
            [v for r in responses for v in r.versions or (-1,) * len(r.tokens)], dtype=torch.int32
        ),
        **_rows("experts", [r.experts for r in responses]),
    }
    episodes = [r.episode for r in responses]
    has_branches = any(episode is not None and episode.branches for episode in episodes)
    return columns | (_episode_columns(episodes) if has_branches else {})


def responses_in(file: h5py.File, prefix: str = "") -> list[Response]:
    """Read the responses of a file that holds `response_columns`.

    Args:
        prefix: of the columns' names.

    Raises:
        KeyError, ValueError, OSError, RuntimeError: the file is damaged.
    """
    lengths, ends = (read_dataset(file, prefix + name).tolist() for name in ("lengths", "ends"))
    tokens, log_probs, sampled, versions = (
        list(split(read_dataset(file, prefix + name).numpy(), lengths))
        for name in ("tokens", "log_probs", "sampled", "versions")
    )
    experts = _read_rows(file, f"{prefix}experts", len(lengths))
    episodes = [None] * len(lengths) if prefix else _episodes_in(file, len(lengths))
    return [
        Response(
            tuple(tokens[i].tolist()),
            tuple(log_probs[i].tolist()),
            _ENDS[end],
            None if sampled[i].all() else tuple(sampled[i].tolist()),
            experts[i],
            episodes[i],
            tuple(versions[i][versions[i] >= 0].tolist()),
        )
        for i, end in enumerate(ends)
    ]


def _episode_columns(episodes: Sequence[Episode | None]) -> dict[str, torch.Tensor]:
    branches = [branch for e in episodes if e is not None for branch in e.branches]
    prompts, rewards = [b.prompt for b in branches], [b.rewards for b in branches]
    columns = response_columns([branch.response for branch in branches])
    numbers: dict[str, list[int]] = {
        "branches": [0 if e is None else len(e.branches) for e in episodes],
        "prompt_lengths": [len(prompt) for prompt in prompts],
        "prompts": [token for prompt in prompts for token in prompt],
        "num_rewards": [len(of_one) for of_one in rewards],
        "rewarded": [index for of_one in rewards for index in of_one],
    }
    scores = [math.nan if e is None or e.score is None else e.score for e in episodes]
    given = [reward for of_one in rewards for reward in of_one.values()]
    return {
        **{_BRANCH + name: column for name, column in columns.items()},
        **{_EPISODE + n: torch.tensor(c, dtype=torch.int64) for n, c in numbers.items()},
        _EPISODE + "scores": torch.tensor(scores, dtype=torch.float64),
        _EPISODE + "rewards": torch.tensor(given, dtype=torch.float64),
    }


def _episodes_in(file: h5py.File, count: int) -> list[Episode | None]:
    if not file.id.links.exists(f"{_EPISODE}branches".encode()):
        return [None] * count

    def column(name: str) -> Any:
        return read_dataset(file, _EPISODE + name).numpy()

    prompts = split(column("prompts"), column("prompt_lengths").tolist())
    counts = column("num_rewards").tolist()
    rewards = zip(split(column("rewarded"), counts), split(column("rewards"), counts), strict=True)
    branches = [
        Branch(
            tuple(prompt.tolist()), response, dict(zip(at.tolist(), given.tolist(), strict=True))
        )
        for prompt, response, (at, given) in zip(
            prompts, responses_in(file, _BRANCH), rewards, strict=True
        )
    ]
    of_each = split(np.array(branches, object), column("branches").tolist())
    return [
        Episode(tuple(some), None if math.isnan(score) else score) if len(some) else None
        for some, score in zip(of_each, column("scores").tolist(), strict=True)
    ]


def split(array: Any, lengths: Sequence[int]) -> Iterator[Any]:
    """Split an array into consecutive parts.

    Raises:
        ValueError: the lengths do not add up to the array's.
    """
    if min(lengths, default=0) < 0 or sum(lengths) != len(array):
        raise ValueError(f"has {len(array)} rows, {sum(lengths)} were written")
    stops = np.cumsum(lengths, dtype=np.int64).tolist()
    return (array[stop - n : stop] for n, stop in zip(lengths, stops, strict=True))


def _rows(name: str, arrays: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Return the columns of arrays (rows, ...) of one type and width; some may be None."""
    present = [np.ascontiguousarray(array) for array in arrays if array is not None]
    if not present:
        return {}
    form = [present[0].itemsize, *present[0].shape[1:]]
    rows = [array.view(np.uint8).reshape(len(array), int(np.prod(form))) for array in present]
    counts = [-1 if array is None else len(array) for array in arrays]
    return {
        name: torch.from_numpy(np.concatenate(rows)),
        f"{name}_rows": torch.tensor(counts, dtype=torch.int64),
        f"{name}_form": torch.tensor(form, dtype=torch.int64),
    }


def _read_rows(file: h5py.File, name: str, count: int) -> list[Any]:
    if not file.id.links.exists(name.encode()):
        return [None] * count
    itemsize, *shape = read_dataset(file, f"{name}_form").tolist()
    counts = read_dataset(file, f"{name}_rows").tolist()
    parts = split(read_dataset(file, name).numpy(), [max(n, 0) for n in counts])
    return [
        part.view(_TYPES[itemsize]).reshape(n, *shape) if n >= 0 else None
        for n, part in zip(counts, parts, strict=True)
    ]


def write_responses(step: Path, replica: int, key: str, responses: Mapping[int, Response]) -> None:
    """Write a replica's finished responses, by slot, into a step's directory.

    Raises:
        CheckpointError: they cannot be written.
    """
    path = step / _DIRECTORY / f"replica_{replica:05d}.h5"
    partial = path.with_suffix(".partial")
    slots = torch.tensor(list(responses), dtype=torch.int64)
    columns = {"slots": slots, **response_columns(list(responses.values()))}
    try:
        path.parent.mkdir(exist_ok=True)
        write_tensors(partial, columns, **{_KEY: key})
        partial.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_responses(step: Path) -> Iterator[tuple[str, dict[int, Response]]]:
    """Yield each stored replica's key, and its responses by slot.

    Raises:
        DamageError: a file is damaged.
    """
    for path in sorted((step / _DIRECTORY).glob("replica_*.h5")):
        with reading(path), open_file(path) as file:
            slots = read_dataset(file, "slots").tolist()
            responses = dict(zip(slots, responses_in(file), strict=True))
            of_replica = str(file.attrs[_KEY]), responses
        yield of_replica
