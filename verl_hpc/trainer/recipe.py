"""Recipes: the operators of a step, with their roles, settings and placement.

A recipe is a function of the run that returns a `Recipe`; a user's file may have one (`recipe:
path/file.py:name`). An operator is a function

    f(place, role, ..., settings, value, ...) -> output, metrics

declared by `@operator`. Its roles and settings are those that the recipe names; each further
parameter takes the value of its own name. Metrics are numbers by name, the same on all ranks of the
placement.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import FlowError
from verl_hpc.flow import DataFlow, Pipeline
from verl_hpc.generation.rollout import Rollout
from verl_hpc.placement.layouts import ROLLOUT
from verl_hpc.step.role import Role
from verl_hpc.trainer.context import RunContext


class Recipe(DataFlow):
    """The flow of one step; its input `rows` has the step's rows of the data set.

    Args:
        name: name in pictures and messages.
        run: the run, with its roles and placements.
    """

    def __init__(self, name: str, run: RunContext) -> None:
        super().__init__(name, inputs=("rows",), index="samples")
        self._run = run
        self.metrics: dict[str, float] = {}
        """Metrics of the operators run since this was last cleared."""
        self.roles: set[str] = set()
        """Names of the roles that operators use."""
        self.evaluation: Recipe | None = None
        """Flow that evaluates, on rows of the evaluation data; None answers the prompts greedily
        and scores the answers with the reward function."""
        self.of_tasks: dict[str, Recipe] = {}
        """Recipes of several tasks by name, of which this is the first; empty without tasks."""
        self._first_steps: dict[str, int] = {}
        self._compiled: dict[int, Pipeline] = {}
        """Compiled pipelines by step, up to the last that an operator joins in."""

    def operator(
        self,
        func: Callable[..., Any],
        *,
        roles: Sequence[str] = (),
        settings: Any = None,
        place: str | None = None,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] | None = None,
        index: str | None = None,
        prefix: str = "",
        first_step: int = 1,
    ) -> Recipe:
        """Append an operator.

        Args:
            func: declared by `@operator`.
            roles: roles passed after the placement, in order.
            settings: passed after the roles, unless None.
            place: role or placement on whose ranks it runs; the first role's if None.
            name: the function's name if None.
            inputs: names of the values to pass to parameters of other names.
            outputs: other names of its values, in the declared order.
            index: the value that says which ranks have its columns' rows, if not `samples`.
            prefix: prefix of its metrics' names, to distinguish another operator's.
            first_step: step from which the operator is part of the flow.

        Raises:
            FlowError: the run has no such role or placement, neither is given, a role's groups of
                ranks differ from the operator's, or the number of outputs differs from the
                function's.
        """
        name = name or func.__name__
        declared = getattr(func, "declared", None)
        if declared is None:
            raise FlowError(f"operator {name!r}: put @operator(...) on its function")
        role_objects = [self._role(name, role) for role in roles]
        if place is None and not role_objects:
            raise FlowError(f"operator {name!r}: give it roles, or a place to run at")
        where = self._run.place(place) if place is not None else role_objects[0].place
        for role, its in zip(roles, role_objects, strict=True):
            if its.place.groups != where.groups:
                raise FlowError(
                    f"operator {name!r}: it runs at {where.name}, and the role {role!r} is at "
                    f"{its.place.name} in other groups of ranks; give it the roles of one "
                    "placement, and the values of another operator there"
                )
        names = declared.outputs if outputs is None else outputs
        if len(names) != len(declared.outputs):
            raise FlowError(
                f"operator {name!r}: outputs = {', '.join(names)}; its function declares "
                f"{len(declared.outputs)}: {', '.join(declared.outputs)}"
            )
        # The flow calls it with values only; placement, roles and settings are fixed here.
        given = (where, *role_objects, *((settings,) if settings is not None else ()))
        renamed = dict(zip(declared.outputs, names, strict=True))
        self._first_steps[name] = first_step
        self.add(
            name,
            self._bound(
                name,
                func,
                given,
                prefix,
                computes=any(isinstance(role, Role) for role in role_objects),
            ),
            inputs=inputs,
            outputs=tuple(renamed.values()),
            placement=where.name,
            shared=tuple(renamed[value] for value in declared.shared),
            changes_state=declared.changes_state,
            index=index,
            roles=tuple(roles),
        )
        return self

    def without(self, *names: str) -> Recipe:
        """See `DataFlow.without`."""
        rest = super().without(*names)
        rest._compiled = {}
        return rest

    def of_step(self, step: int) -> Recipe:
        """Return the flow without operators that join after `step`."""
        late = [op.name for op in self.operators if step < self._first_steps[op.name]]
        return self.without(*late) if late else self

    def pipeline(self, step: int | None = None) -> Pipeline:
        """Return the pipeline of a step, or of all operators, on the run's placements; compiled
        once, so that no operator may be added afterwards.

        Raises:
            FlowError: see `compile`.
        """
        joins = [first for first in self._first_steps.values() if step is None or first <= step]
        step = max(joins, default=1)
        if step not in self._compiled:
            self._compiled[step] = self.of_step(step).compile(self._run.ranks)
        return self._compiled[step]

    def compile(self, placements: Mapping[str, Sequence[int]] | None = None) -> Pipeline:
        """See `DataFlow.compile`.

        Raises:
            FlowError: also if an engine would generate after models have taken its device.
        """
        pipeline = super().compile(placements)
        took: dict[int, str] = {}
        for op in pipeline.operators:
            ranks = self._run.places[op.placement].ranks
            late = next((rank for rank in ranks if rank in took), None)
            if "rollout" in op.roles and late is not None:
                raise FlowError(
                    f"recipe {self.name!r}: operator {op.name!r} generates after {took[late]!r}, "
                    f"whose model has taken the device of rank {late} from the engine; declare it "
                    "before, or place the rollout on ranks of its own"
                )
            if any(role in self._run.roles for role in op.roles):
                took |= dict.fromkeys(ranks, op.name)
        return pipeline

    @property
    def generates(self) -> bool:
        """Whether any operator uses the rollout engines."""
        return any(ROLLOUT in op.roles for op in self.operators)

    def _bound(
        self, name: str, func: Callable[..., Any], given: Sequence[Any], prefix: str, computes: bool
    ) -> Callable[..., Any]:
        """Return an operator with bound placement, roles and settings, which the flow calls with
        values.

        Args:
            computes: whether a model of it computes, so that a save must have copied the weights,
                and the rollout must have given the device's memory back.
        """
        run, bound = self._run, partial(func, *given)

        def call(**values: Any) -> Any:
            if computes:
                run.prepare()
            result = bound(**values)
            is_pair = isinstance(result, tuple) and len(result) == 2
            if not (is_pair and isinstance(result[1], Mapping)):
                raise FlowError(
                    f"operator {name!r} gives {type(result).__name__}; expected its output and "
                    "its metrics: `return output, {}`"
                )
            output, metrics = result
            if prefix:
                metrics = {f"{prefix}{metric}": value for metric, value in metrics.items()}
            twice = sorted({*self.metrics}.intersection(metrics))
            if twice:
                raise FlowError(
                    f"operator {name!r}: another operator of the step gives the metric "
                    f"{twice[0]!r}, too; give one of them a prefix"
                )
            self.metrics |= metrics
            return output

        call.__signature__ = inspect.signature(bound)  # type: ignore[attr-defined]
        return call

    def _role(self, operator: str, name: str) -> Role | Rollout:
        self.roles.add(name)
        known = self._run.every_role
        if name in known:
            return known[name]
        needs = f"recipe {self.name!r}: operator {operator!r} needs the role {name!r}"
        if name == ROLLOUT:  # which nobody can give in roles
            raise FlowError(
                f"{needs}, and nothing generates in this run; name the role that generates actor, "
                "and choose rollout.engine: vllm or hf"
            )
        raise FlowError(
            f"{needs}, which the run does not have; give it in roles, or "
            f"{near_or_all(name, known, 'roles')}"
        )
