"""An operator is a function of one step that a recipe adds to its flow.

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
    """Outputs of an operator, as declared by `@operator`."""

    outputs: Sequence[str]
    shared: Sequence[str]
    changes_state: bool


def operator(
    *outputs: str, shared: Sequence[str] = (), changes_state: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function's outputs; the function itself is unchanged.

    Args:
        outputs: names of its values: a single one is returned itself, several or none as a tuple.
        shared: those that are equal on all ranks of its placement.
        changes_state: whether it changes state that checkpoints hold.

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
