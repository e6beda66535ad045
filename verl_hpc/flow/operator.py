"""One step of a data flow: a function, what it needs, what it gives, and where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hpc.errors import FlowError

EVERYWHERE = "everywhere"
"""The placement of values that are the same on all ranks."""


@dataclass(frozen=True)
class Operator:
    """A named function in a data flow.

    Args:
        name: unique in its flow.
        func: called with its inputs by position; gives its output, or a tuple of its outputs.
        inputs: names of values it needs; the parameters of `func` if None.
        outputs: names of values it gives; its own name if None.
        placement: label of the ranks it runs on and of how samples are dealt to them.
        shared: which of its outputs are the same on all its ranks, whatever samples they have.
        after: operators that must have run before, although no value connects them.
        changes_state: it changes what a checkpoint holds, so a step that has begun to run it must
            be finished.
    """

    name: str
    func: Callable[..., Any]
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    placement: str = EVERYWHERE
    shared: Sequence[str] = ()
    after: Sequence[str] = ()
    changes_state: bool = False

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of its outputs."""
        return (self.name,) if self.outputs is None else tuple(self.outputs)

    def parameters(self) -> tuple[str, ...]:
        """Names of what `func` takes.

        Raises:
            FlowError: `func` takes *args, **kwargs, so its inputs must be named.
        """
        found = inspect.signature(self.func).parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found):
            raise FlowError(
                f"operator {self.name!r}: its function takes any number of arguments; name its "
                "inputs=(...)"
            )
        return tuple(p.name for p in found if p.default is p.empty)
