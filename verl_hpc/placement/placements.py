"""Convert the labels of a configuration's placement to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from verl_hpc.config.role import SHARE, SPAN
from verl_hpc.errors import ConfigError


def place_ranks(
    placement: Mapping[str, str], num_ranks: int, ranks_per_node: int | None = None
) -> dict[str, range]:
    """Ranks of every label.

    `{train: 1/2, rollout: 1/2}` is, for 8 ranks: train 0-3, rollout 4-7; so are
    `{train: 0-3, rollout: 4-7}` and, with 4 ranks a node, `{train: node 0, rollout: node 1}`.

    Args:
        placement: text by label, as `RunConfig.placement`.
        num_ranks: of the job.
        ranks_per_node: needed where a label names nodes.

    Raises:
        ConfigError: ranks that do not exist, or a share that is not a whole number of them.
    """
    placed: dict[str, range] = {}
    next_rank = 0
    for label, text in placement.items():
        if share := SHARE.fullmatch(text):
            size = Fraction(int(share[1]), int(share[2])) * num_ranks
            if size.denominator != 1 or not size or next_rank + size > num_ranks:
                raise ConfigError(
                    f"placement.{label} = {text}: of {num_ranks} ranks, {num_ranks - next_rank} "
                    f"are left and {float(size):g} are asked for; choose a share that is a whole "
                    "number of them"
                )
            placed[label] = range(next_rank, next_rank + int(size))
            next_rank += int(size)
        else:
            placed[label] = _ranks(label, text, num_ranks, ranks_per_node)
    return placed


def _ranks(label: str, text: str, num_ranks: int, ranks_per_node: int | None) -> range:
    if text == "all":
        return range(num_ranks)
    parts = SPAN.fullmatch(text)
    assert parts is not None, text
    first, last = int(parts[2]), int(parts[3] or parts[2])
    unit, what = 1, "ranks"
    if parts[1]:
        unit, what = ranks_per_node or num_ranks, "nodes"
    limit = num_ranks // unit
    if not first <= last < limit:
        raise ConfigError(
            f"placement.{label} = {text}: the job has {what} 0 to {limit - 1}; choose neighbours "
            "among them, the lower first, or start more"
        )
    return range(first * unit, (last + 1) * unit)
