"""Options of a role on a number of ranks: its layouts, with their seconds and least bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.placement.layouts import ROLLOUT
from verl_hpc.planner.memory.rollout import rollout_shape
from verl_hpc.planner.search.cuts import Cut, cuts_of, rollout_sizes
from verl_hpc.planner.search.memory_bound import MemoryBound
from verl_hpc.planner.search.pareto_front import Option, ParetoFront
from verl_hpc.planner.search.set_bytes import SetBytes
from verl_hpc.planner.search.set_ledger import SearchedRun
from verl_hpc.planner.shape import RoleShape
from verl_hpc.planner.timing.operator_costs import (
    engines,
    filled_cost,
    merging_cost,
    offload_cost,
    pass_cost,
    serving_cost,
    swap_cost,
)
from verl_hpc.planner.timing.operators import Work
from verl_hpc.planner.timing.refit import Refit, estimated_seconds


class Options:
    """Options of the roles of a run, computed once for each number of ranks.

    Args:
        run: the searched run.
        bound: of memory.
        works: the operators of a step.
    """

    def __init__(self, run: SearchedRun, bound: MemoryBound, works: Sequence[Work]) -> None:
        self._run, self._bound, self._works = run, bound, works
        self._config, self._machine, self._arch = run.config, run.machine, run.archs[run.first]
        self._models = {
            name: RoleShape.of_role(one, run.archs[name], TrainLayout(), run.hardware.kind.is_gpu)
            for name, one in run.settings.items()
        }
        self._per_node = run.hardware.ranks_per_node
        self.of = cache(self._front)
        self._passes: dict[tuple[object, ...], float] = {}
        self._serving = cache(self._engines_of)
        self.evaluated = 0
        """Layouts whose bytes were worked out."""

    def _front(
        self, role: str, num_ranks: int, generates: bool, sharing: tuple[str, ...]
    ) -> ParetoFront:
        """The options of a role that are worth choosing, the fastest first.

        Args:
            role: or ROLLOUT, of ranks that do nothing else.
            num_ranks: of its set.
            generates: whether engines generate on the same ranks.
            sharing: roles that compute in its engine.
        """
        if role == ROLLOUT:
            return ParetoFront(self._serving(num_ranks, False))
        return ParetoFront(self._training(role, num_ranks, generates, sharing))

    def _training(
        self, role: str, num_ranks: int, generates: bool, sharing: tuple[str, ...]
    ) -> Iterable[Option]:
        settings, arch = self._run.settings[role], self._run.archs[role]
        cuts = cuts_of(
            arch,
            num_ranks,
            self._per_node,
            settings.parallel.recompute,
            settings.trainable,
            settings.parallel.context_parallel,
        )
        outside = self._bound.outside(num_ranks, has_roles=True)
        serving: Sequence[Option | None] = [None]
        if role == self._run.first and generates:
            serving = self._serving(num_ranks, True)
        for cut in cuts:
            self.evaluated += 1
            held = self._bound.role(role, cut, generates, sharing)
            # Drop layouts that fit with no engine before their seconds are computed.
            alone = outside.plus(held)
            fitting = [
                engine
                for engine in serving
                if self._bound.limits.admit(alone if engine is None else alone.plus(engine.bytes))
            ]
            if not fitting:
                continue
            seconds = self._seconds(role, cut, generates, sharing)
            for engine in fitting:
                if engine is None:
                    yield Option(cut, None, seconds, held)
                else:
                    yield self._with_engine(cut, seconds, held, engine)

    def _seconds(
        self, role: str, cut: Cut, generates: bool, sharing: tuple[str, ...]
    ) -> tuple[float, ...]:
        """Seconds of each operator; the last entry is the refit."""
        base, settings = self._models[role], self._run.settings[role]
        model = replace(base, layout=cut.layout, recompute=cut.recompute)
        forward = model if cut.recompute == "none" else replace(model, recompute="none")
        swap = self._machine.seconds(swap_cost(self._machine, model)) if sharing else 0.0
        seconds = [0.0] * (len(self._works) + 1)
        for place, one in enumerate(self._works):
            if one.role == role and one.kind in ("infer", "update"):
                seconds[place] = self._pass_seconds(one, forward if one.kind == "infer" else model)
            elif one.role in sharing:
                seconds[place] = self._pass_seconds(one, forward) + swap
        if generates and self._config.samples_to_train:
            seconds[-1] = self._machine.seconds(offload_cost(self._machine, settings, model))
        return tuple(seconds)

    def _pass_seconds(self, one: Work, model: RoleShape) -> float:
        key = (one.kind, one.greedy, model)
        if key not in self._passes:
            cost = pass_cost(self._machine, one, model, self._run.work)
            self._passes[key] = self._machine.seconds(cost)
        return self._passes[key]

    def _engines_of(self, num_ranks: int, beside_roles: bool) -> list[Option]:
        """Engines of every size that can start."""
        options = []
        config, arch = self._config, self._arch
        sizes = rollout_sizes(arch, num_ranks, self._per_node, config.rollout)
        if not config.samples_to_train:
            # Only evaluations generate, which are not part of a step.
            sizes = [tp for tp in sizes if tp == config.rollout.tensor_parallel]
        for tp in sizes:
            held = self._bound.engine(
                rollout_shape(config, arch, self._machine.hardware.kind.is_gpu, tp), beside_roles
            )
            if held is None:
                continue
            seconds = self._generation_seconds(num_ranks, tp)
            if config.samples_to_train and not beside_roles:
                seconds[-1] = self._transfer(TrainLayout(), tp, shared=False)
            options.append(Option(None, tp, tuple(seconds), held))
        return options

    def _generation_seconds(self, num_ranks: int, tp: int) -> list[float]:
        deployed = engines(self._config, self._arch, self._machine, num_ranks, tp)
        costs = (
            serving_cost(self._machine, one, deployed, self._run.work, num_ranks)
            for one in self._works
        )
        return [*map(self._machine.seconds, costs), 0.0]

    def _with_engine(
        self, cut: Cut, seconds: Sequence[float], held: SetBytes, engine: Option
    ) -> Option:
        assert engine.rollout_tp is not None
        both = [a + b for a, b in zip(seconds, engine.seconds, strict=True)]
        if self._config.samples_to_train:
            both[-1] += self._transfer(cut.layout, engine.rollout_tp, shared=True)
            if self._machine.hardware.kind.is_gpu:
                both[-1] += self._machine.seconds({"switches": 1.0})
        return Option(cut, engine.rollout_tp, tuple(both), held.plus(engine.bytes))

    def _transfer(self, layout: TrainLayout, tp: int, shared: bool) -> float:
        machine = self._machine
        refit = Refit.of(self._config, self._arch, layout, tp, shared)
        seconds = estimated_seconds(refit, machine.hardware, self._config.rollout.verify.checksums)
        if machine.hardware.kind.is_gpu:
            return seconds + machine.seconds(merging_cost(machine, refit))
        return seconds + machine.seconds(filled_cost(machine, self._config, refit))
