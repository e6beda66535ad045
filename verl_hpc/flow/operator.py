"""One step of a data flow: a function, what it needs, what it gives, and where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from verl_hpc.errors import FlowError

EVERYWHERE = "all ranks"  # no label can have this name
"""The placement of values that are the same on all ranks."""


@dataclass(frozen=True)
class Operator:
    """A named function in a data flow.

    Args:
        name: unique in its flow.
        func: called with its inputs by keyword; gives its output, or a tuple of its outputs.
        inputs: parameters of `func` that take a value of another name. Every other parameter takes
            the value of its own name; one with a default only where the flow has such a value.
        outputs: names of values it gives; its own name if None.
        placement: label of the ranks it runs on and of how samples are assigned to them.
        shared: outputs that are the same on all its ranks, whatever samples they have.
        changes_state: it changes what a checkpoint holds, so a step that has begun to run it must
            be finished.
        index: the shared value that says which rank has which samples of its outputs under every
            placement; the flow's if None.
        roles: names of the roles that it works with, for pictures.

    Raises:
        FlowError: it has no name, or nothing to call.
    """

    name: str
    func: Callable[..., Any]
    inputs: Mapping[str, str] | None = None
    outputs: Sequence[str] | None = None
    placement: str = EVERYWHERE
    shared: Sequence[str] = ()
    changes_state: bool = False
    index: str | None = None
    roles: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise FlowError(f"Operator: name = {self.name!r}; expected a text, unique in its flow")
        if not callable(self.func):
            raise FlowError(
                f"operator {self.name!r}: func is {type(self.func).__name__}; expected a function"
            )

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of its function.

        Raises:
            FlowError: Python does not know them.
        """
        try:
            return inspect.signature(self.func).parameters
        except ValueError:  # some of Python's own
            raise FlowError(
                f"operator {self.name!r}: Python does not know the parameters of {self.func!r}; "
                "call it in a function of your own"
            ) from None

    @cached_property
    def positional(self) -> Sequence[str]:
        """Positional-only parameters of its function."""
        return [n for n, p in self.parameters.items() if p.kind is p.POSITIONAL_ONLY]

    @cached_property
    def gives(self) -> tuple[str, ...]:
        """Names of its outputs."""
        return (self.name,) if self.outputs is None else tuple(self.outputs)

    def needs(self, known: Collection[str]) -> dict[str, str]:
        """The value that each parameter takes, of those that the flow has.

        Raises:
            FlowError: `func` takes *args or **kwargs, or has no parameter that `inputs` names.
        """
        parameters = self.parameters
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
            raise FlowError(
                f"operator {self.name!r}: its function takes any number of arguments, so that "
                "nothing says which values it needs; name its parameters"
            )
        renamed = dict(self.inputs or {})
        for name in renamed:
            if name not in parameters:
                raise FlowError(
                    f"operator {self.name!r}: inputs names {name!r}, which is not a parameter of "
                    f"its function; parameters: {', '.join(parameters)}"
                )
        values = {name: renamed.get(name, name) for name in parameters}
        return {
            name: value
            for name, value in values.items()
            if parameters[name].default is inspect.Parameter.empty
            or value in known
            or name in renamed
        }
