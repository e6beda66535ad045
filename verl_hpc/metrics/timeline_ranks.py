"""Choose the ranks of a run that keep a timeline."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from verl_hpc.metrics.timeline import Timeline
from verl_hpc.metrics.timeline_reader import rank_files

MAX_RANKS = 64
"""Most ranks that write a timeline."""

_logger = logging.getLogger(__name__)


def writing_ranks(num_ranks: int, placements: Mapping[str, Sequence[int]]) -> frozenset[int]:
    """Return the ranks that write a timeline, at most `MAX_RANKS`: rank 0, the first of each
    placement (up to `MAX_RANKS` - 1), and others at equal distances."""
    chosen = {0, *(ranks[0] for ranks in placements.values() if ranks)}
    if len(chosen) > MAX_RANKS:
        chosen = set(sorted(chosen)[:MAX_RANKS])
    room = MAX_RANKS - len(chosen)
    others = [rank for rank in range(num_ranks) if rank not in chosen]
    if len(others) > room:
        others = [others[i * len(others) // room] for i in range(room)]
    return frozenset(chosen.union(others))


def open_timeline(
    run_directory: Path,
    rank: int,
    num_ranks: int,
    placements: Mapping[str, Sequence[int]],
    resumed_from: int | None,
) -> Timeline:
    """Open a rank's timeline, which writes if the rank is one of `writing_ranks`.

    Rank 0 also removes files of ranks that wrote in an earlier start and do not now.
    """
    writers = writing_ranks(num_ranks, placements)
    if rank == 0:
        forget_others(run_directory, writers, resumed_from)
    return Timeline(run_directory, rank, resumed_from, writes=rank in writers)


def forget_others(run_directory: Path, writers: Collection[int], resumed_from: int | None) -> None:
    """Keep only the steps up to the resumed one in files of ranks that do not write now."""
    for rank, path in rank_files(run_directory):
        if rank in writers:
            continue
        try:
            if resumed_from is None:
                path.unlink()
            else:
                Timeline(run_directory, rank, resumed_from).close()
        except OSError as error:
            _logger.warning("%s cannot be removed: %s", path, error)
