"""An operator is a function of one step that a recipe puts into its flow.

    f(place, role, ..., settings, value, ...) -> output, metrics

Its roles and settings are those that the recipe names; each further parameter takes the value of
its own name. Metrics are numbers by name, equal on all ranks of the placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hpc.errors import FlowError

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Declared:
    """Names of the values that an operator gives, and what `@operator` was told of them."""

    outputs: Sequence[str]
    shared: Sequence[str]
    changes_state: bool


def operator(
    *outputs: str, shared: Sequence[str] = (), changes_state: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what a function gives; the function itself stays as it is.

    Args:
        outputs: names of its values: one is returned as it is, more or none as a tuple.
        shared: which of them are the same on all ranks of its placement.
        changes_state: it changes what a checkpoint holds.

    Raises:
        FlowError: shared names a value that is not among the outputs.
    """
    for value in shared:
        if value not in outputs:
            raise FlowError(f"@operator: shares {value!r}, which is not one of its outputs")

    def declare(func: Callable[..., Any]) -> Callable[..., Any]:
        func.declared = Declared(outputs, shared, changes_state)  # type: ignore[attr-defined]
        return func

    return declare
