"""One role on one layout in three numbers, as a search asks for them: thousands of times.

Everything below is worked out once for each shape and stage; a shape that is known takes
microseconds, a new one about a millisecond.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from verl_hpc.config.model import OffloadConfig
from verl_hpc.planner.memory import passes, role
from verl_hpc.planner.memory.shape import RoleShape


class RoleTotals(NamedTuple):
    """Bytes on the device of the fullest stage, for each number alone."""

    resident: int
    """Whatever computes."""
    working: int
    """More, while the role computes itself: an update, or log-probs where it is not trained."""
    generating: int
    """That stays while an engine generates on the same rank."""


@lru_cache(maxsize=65536)
def role_totals(
    shape: RoleShape,
    tokens: int,
    offload: OffloadConfig | None = None,
    num_micro_batches: int | None = None,
) -> RoleTotals:
    """Of a role.

    Args:
        shape: the model on its layout.
        tokens: of a micro-batch, or of the longest sequence if that is longer.
        offload: what leaves the device while an engine generates there; None is nothing.
        num_micro_batches: of an update; None is as many as the pipeline can hold.
    """
    away = offload or OffloadConfig()
    found = [_of_stage(shape, s, tokens, away, num_micro_batches) for s in _different(shape)]
    return RoleTotals(*(max(numbers) for numbers in zip(*found, strict=True)))


def _different(shape: RoleShape) -> list[int]:
    """The first stage of those with the same parameters: it holds most micro-batches of them."""
    found: dict[tuple[object, ...], int] = {}
    for stage in range(shape.layout.pp):
        layers = tuple(row[stage] for row in shape.layers)
        found.setdefault((layers, stage == 0, shape.is_last(stage)), stage)
    return list(found.values())


def _of_stage(
    shape: RoleShape, stage: int, tokens: int, away: OffloadConfig, num: int | None
) -> RoleTotals:
    terms = role.resident(shape, stage)
    fp8 = role.fp8_copies(shape, stage)
    work = passes.forward(shape, stage, tokens)
    if shape.trainable:
        work = passes.update(shape, stage, tokens, num)
    stays = fp8 + sum(
        (not gone) * size
        for gone, size in (
            (away.parameters, terms["weights"]),
            (away.gradients, terms["gradients"]),
            (away.optimizer, terms["masters"] + terms["moments"]),
        )
    )
    return RoleTotals(sum(terms.values()) + fp8, sum(work.values()), stays)
