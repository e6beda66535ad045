"""What a role can be on so many ranks: its layouts, with the seconds and bytes of each.

Only those are kept that no other beats in everything: seconds of every operator, and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.layouts import ROLLOUT
from verl_hpc.planner.search.cuts import Cut, cuts_of, rollout_sizes
from verl_hpc.planner.search.memory import Memory
from verl_hpc.planner.timing.cost import Cost
from verl_hpc.planner.timing.generation import Engines, at_a_time, generate_cost
from verl_hpc.planner.timing.machine import Machine, element_size
from verl_hpc.planner.timing.operator_costs import (
    engines,
    offload_cost,
    role_model,
    rollout_dtype,
)
from verl_hpc.planner.timing.operators import Work
from verl_hpc.planner.timing.passes import Model, infer_cost, parameters_per_rank, update_cost
from verl_hpc.planner.timing.refit import estimated_seconds
from verl_hpc.planner.timing.workload import Workload


@dataclass(frozen=True)
class Option:
    """One choice for a role."""

    cut: Cut | None
    """None of rollout ranks of their own."""
    rollout_tp: int | None
    """Of the engines on its ranks, if there are some."""
    seconds: tuple[float, ...]
    """That it adds to each operator, and last to the refit."""
    resident: int
    working: int
    generating: int
    engine: tuple[int, int] = (0, 0)
    """Bytes of a rollout rank: while weights arrive, and while it generates."""

    @cached_property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """All bytes."""
        return (self.resident, self.working, self.generating, *self.engine)

    @property
    def measures(self) -> tuple[float, ...]:
        """All that is better smaller."""
        return (*self.seconds, *self.sizes)


class Options:
    """Of the roles of a run, worked out once for each number of ranks."""

    def __init__(
        self,
        config: RunConfig,
        archs: Mapping[str, Architecture],
        machine: Machine,
        work: Workload,
        memory: Memory,
        works: Sequence[Work],
    ) -> None:
        self._config, self._archs, self._machine = config, archs, machine
        self._work, self._memory, self._works = work, memory, works
        self._settings = config.role_settings
        self._first = next(iter(self._settings))
        self._per_node = machine.hardware.ranks_per_node
        self._known: dict[tuple[str, int, bool, tuple[str, ...]], list[Option]] = {}
        self._costs: dict[tuple[object, ...], float] = {}
        self._serving: dict[int, list[tuple[Engines, tuple[float, ...]]]] = {}
        self.evaluated = 0
        """Layouts whose seconds were worked out."""

    def of(
        self, role: str, num_ranks: int, beside_rollout: bool, sharing: tuple[str, ...]
    ) -> list[Option]:
        """The fastest first.

        Args:
            role: or ROLLOUT, of ranks that do nothing else.
            num_ranks: of its set.
            beside_rollout: engines generate on the same ranks.
            sharing: roles that compute in its engine.
        """
        key = (role, num_ranks, beside_rollout, sharing)
        if key not in self._known:
            found = list(self._all(role, num_ranks, beside_rollout, sharing))
            self._known[key] = sorted(undominated(found), key=lambda o: sum(o.seconds))
        return self._known[key]

    def _all(
        self, role: str, num_ranks: int, beside_rollout: bool, sharing: tuple[str, ...]
    ) -> Iterable[Option]:
        if role == ROLLOUT:
            yield from self._rollouts(num_ranks)
            return
        settings, arch = self._settings[role], self._archs[role]
        cuts = cuts_of(
            arch, num_ranks, self._per_node, settings.parallel.recompute, settings.trainable
        )
        for cut in cuts:
            self.evaluated += 1
            plain = self._of_cut(role, cut, beside_rollout, sharing)
            if role == self._first and beside_rollout:
                yield from self._with_engines(plain, num_ranks)
            else:
                yield plain

    def _of_cut(
        self, role: str, cut: Cut, beside_rollout: bool, sharing: tuple[str, ...]
    ) -> Option:
        settings, arch = self._settings[role], self._archs[role]
        model = replace(role_model(settings, arch, cut.layout), recompute=cut.recompute)
        seconds = [0.0] * (len(self._works) + 1)
        for place, one in enumerate(self._works):
            if one.role == role and one.kind in ("infer", "update"):
                seconds[place] = self._pass_seconds(one, model)
            elif one.role in sharing:
                seconds[place] = self._pass_seconds(one, model) + self._swap(model)
        if beside_rollout:
            seconds[-1] = self._offload(settings, model)
        found = self._memory.role(role, cut)
        return Option(cut, None, tuple(seconds), found.resident, found.working, found.generating)

    def _pass_seconds(self, one: Work, model: Model) -> float:
        if one.kind == "infer":
            model = replace(model, recompute="none")
        key = (one.kind, one.greedy, model)
        if key not in self._costs:
            cost = infer_cost if one.kind == "infer" else update_cost
            work = self._work.greedily() if one.greedy else self._work
            self._costs[key] = self._machine.seconds(cost(self._machine, model, work))
        return self._costs[key]

    def _swap(self, model: Model) -> float:
        if not self._machine.hardware.kind.is_gpu:
            return 0.0
        num_bytes = 2 * element_size(model.dtype) * parameters_per_rank(model)
        return self._machine.seconds(self._machine.pcie(num_bytes))

    def _offload(self, settings: RoleSettings, model: Model) -> float:
        return self._machine.seconds(offload_cost(self._machine, settings, model))

    def _engines(self, num_ranks: int) -> Iterable[tuple[Engines, tuple[float, ...]]]:
        """Engines that hold at least one sequence, and the seconds of operators that generate."""
        config, arch = self._config, self._archs[self._first]
        pp = config.rollout.pipeline_parallel
        for tp in rollout_sizes(arch, num_ranks, self._per_node, pp):
            found = engines(config, arch, self._machine, num_ranks, tp)
            if at_a_time(found, self._work) < 1:
                continue
            seconds = [0.0] * (len(self._works) + 1)
            for place, one in enumerate(self._works):
                if one.kind == "generate":
                    work = self._work.greedily() if one.greedy else self._work
                    cost = generate_cost(self._machine, found, work)
                    seconds[place] = self._machine.seconds(cost)
                elif one.kind == "score":
                    scores: Cost = {"scores": self._work.sequences / num_ranks}
                    seconds[place] = self._machine.seconds(scores)
            yield found, tuple(seconds)

    def _all_engines(self, num_ranks: int) -> list[tuple[Engines, tuple[float, ...]]]:
        if num_ranks not in self._serving:
            self._serving[num_ranks] = list(self._engines(num_ranks))
        return self._serving[num_ranks]

    def _with_engines(self, plain: Option, num_ranks: int) -> Iterable[Option]:
        assert plain.cut is not None
        for found, seconds in self._all_engines(num_ranks):
            added = [a + b for a, b in zip(plain.seconds, seconds, strict=True)]
            added[-1] += self._transfer(plain.cut.layout, found.tp, shared=True)
            added[-1] += self._switch()
            sizes = self._memory.engine(found)
            yield replace(plain, rollout_tp=found.tp, seconds=tuple(added), engine=sizes)

    def _rollouts(self, num_ranks: int) -> Iterable[Option]:
        for found, seconds in self._all_engines(num_ranks):
            added = [*seconds[:-1], self._transfer(TrainLayout(), found.tp, shared=False)]
            sizes = self._memory.engine(found)
            yield Option(None, found.tp, tuple(added), 0, 0, 0, sizes)

    def _switch(self) -> float:
        is_gpu = self._machine.hardware.kind.is_gpu
        return self._machine.seconds({"switches": 1.0}) if is_gpu else 0.0

    def _transfer(self, layout: TrainLayout, tp: int, shared: bool) -> float:
        return estimated_seconds(
            self._archs[self._first],
            layout,
            tp,
            self._machine.hardware,
            rollout_dtype(self._config),
            shared=shared,
            checksums=self._config.rollout.verify.checksums,
        )


def smallest(options: Sequence[Option]) -> list[Option]:
    """Those that no other one is as small as in all bytes."""
    return undominated(options, lambda option: option.sizes)


def undominated(
    options: Sequence[Option],
    measures: Callable[[Option], tuple[float, ...]] = lambda option: option.measures,
) -> list[Option]:
    """Those that no other one is as good as in everything; of equal ones the first."""
    kept: list[tuple[tuple[float, ...], Option]] = []
    for option in sorted(options, key=lambda o: sum(measures(o))):
        mine = measures(option)
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other, _ in kept):
            kept.append((mine, option))
    return [option for _, option in kept]
