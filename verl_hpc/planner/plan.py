"""A run's plan: whether it fits, what a step takes, and what the whole run costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError, VerlHpcError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts, layouts_of, placement_of
from verl_hpc.planner.memory import terms
from verl_hpc.planner.memory.changes import Remedy, remedy
from verl_hpc.planner.memory.ledger import Ledger, ledger_on
from verl_hpc.planner.memory.phase import GIB
from verl_hpc.planner.record import Record
from verl_hpc.planner.search.explain import placed_text
from verl_hpc.planner.search.sizes import Objective, Verified, node_counts, search_sizes
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import ASSUMPTIONS, StepTime, predict_step
from verl_hpc.planner.timing.workload import Workload, workload_of

Archs = Mapping[str, Architecture]
"""Architecture of each role's model, by role name."""

MOST_NODES = 1024
"""Largest node count that `on_fewest` tries."""
MOST_SEARCHED_RANKS = 32_768
"""Limit of a search: up to this, trying every node count takes a minute."""
_MOST_PLANNED_RANKS = 64
"""Limit for planning the transfer itself, which takes seconds; on more ranks it is estimated from
bytes."""
_NOT_TIMED = (
    "parallel.engine = fsdp: seconds are those of Megatron-core's data parallelism; gathering the "
    "parameters of every layer for every micro-batch is not in them."
)
_BOUND = (
    "A {} has no layer table: its layers are taken to be as the largest one, which bounds weights; "
    "activations and seconds are those of a Llama of its sizes."
)
_MORE_RANKS = 16
"""Limit of the search for a size on which the run fits, as a multiple of its ranks."""


@dataclass(frozen=True)
class Plan:
    """Memory, time and cost of a run, predicted before it starts."""

    archs: Archs
    ledger: Ledger
    step: StepTime
    work: Workload
    assumed: tuple[str, ...]
    """Assumptions about the workload, where neither the user nor the configuration gives it."""
    found: Verified | None
    """Result of the search; None without one."""
    planning_seconds: float
    most_tried: int | None = None
    """Largest node count tried, where none of several fits; None if one was given, or the run
    fits."""

    @property
    def config(self) -> RunConfig:
        return self.ledger.config

    @property
    def layouts(self) -> RunLayouts:
        return self.ledger.layouts

    @property
    def num_ranks(self) -> int:
        return self.layouts.num_ranks

    @property
    def num_nodes(self) -> int:
        return -(-self.num_ranks // self.ledger.hardware.ranks_per_node)

    @property
    def fits(self) -> bool:
        return self.ledger.fits

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of all steps; None where the number of steps depends on data not yet
        counted."""
        return None if self.config.steps is None else self.config.steps * self.step.gpu_hours

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the memory and time models, as text."""
        missing = () if self.fits else ("It does not fit: seconds are those of a run that did.",)
        sharded = (_NOT_TIMED,) if _sharded(self.config) else ()
        unmapped = {arch.family for arch in self.archs.values() if not arch.is_mapped}
        bounds = (_BOUND.format(family) for family in sorted(unmapped))
        return (*missing, *self.assumed, *sharded, *bounds, *ASSUMPTIONS, *terms.ASSUMPTIONS)

    @cached_property
    def remedy(self) -> Remedy | None:
        """The cheapest changes that make it fit; None where it fits, or nothing helps."""
        return None if self.fits else cheapest_change(self.ledger, self.archs)

    def why_not(self) -> str | None:
        """The first phase that does not fit, with the largest terms; None where all do."""
        misfit = self.ledger.first_misfit
        return None if misfit is None else misfit.why_not()

    def record(self, made_by: str) -> Record:
        """Record the search that found these layouts.

        Args:
            made_by: the command.
        """
        assert self.found is not None
        kind, room = self.ledger.hardware.kind.name, self.ledger.least_room_bytes
        spare = "" if room is None else f", {room / GIB:.1f} GiB to spare"
        why = (
            f"{self.step.text} a step by the time model{spare}; the best of "
            f"{self.found.found.placements} placements on {self.num_ranks} {kind}: "
            f"{placed_text(self.found.candidate)}"
        )
        return Record(made_by, why, tuple(self.found.overrides))

    def as_json(self) -> dict[str, Any]:
        """Return the output of `plan --json`, with each phase on its fullest rank."""
        phases = [
            {
                "name": phase.name,
                "device_bytes": phase.device_bytes,
                "host_bytes": phase.host_bytes,
                "limit_bytes": phase.limit_bytes,
                "terms": dict(phase.device),
                "host_limit_bytes": phase.host_limit_bytes,
                "fits": phase.fits,
                "rank": phase.rank,
                "of": phase.of,
            }
            for phase in self.ledger.phases
        ]
        return {
            "fits": self.fits,
            "phases": phases,
            "step_seconds": self.step.seconds,
            "step_seconds_band": self.step.band,
            "basis": self.step.basis.text,
            "operators": dict(self.step.operators),
            "gpu_hours": self.gpu_hours,
            "placement": placement_of(self.layouts),
            "layouts": layouts_of(self.layouts),
            "assumptions": list(self.assumptions),
            "planning_seconds": self.planning_seconds,
            "why_not": self.why_not(),
            "remedy": None if self.remedy is None else str(self.remedy),
        }


class Planner:
    """Plans of one configuration on one machine.

    Args:
        config: of the run.
        archs: of every role's model, the first role's first.
        machine: what it runs on.
        work: None takes `workload_of(config)`.
        assumed: assumptions about the workload, as text.
    """

    def __init__(
        self,
        config: RunConfig,
        archs: Archs,
        machine: Machine,
        work: Workload | None = None,
        assumed: Sequence[str] = (),
    ) -> None:
        self._config, self._archs, self._machine = config, archs, machine
        self._work, self._assumed = work or workload_of(config), tuple(assumed)
        self._per_node = machine.hardware.ranks_per_node
        self._began = time.perf_counter()

    def on(self, nodes: int) -> Plan:
        """Plan the configuration's own layouts on this many nodes.

        Raises:
            ConfigError: it cannot be laid out there.
        """
        return self._plan(self._ledger(nodes))

    def on_best(self, most_nodes: int, objective: Objective = "seconds") -> Plan:
        """Plan on the best number of nodes up to `most_nodes`, among those on which the run fits.

        Raises:
            ConfigError: it can be laid out on none of them.
        """
        ledgers, refused = self._ledgers(node_counts(most_nodes))
        if not ledgers:
            raise refused[-1]
        plans = [self._plan(one) for one in ledgers if one.fits]
        if not plans:
            return self._plan(ledgers[-1], most_tried=most_nodes)
        return min(plans, key=lambda plan: float(getattr(plan.step, objective)))

    def on_fewest(self) -> Plan:
        """Plan on the fewest nodes on which the run fits, among the `node_counts` up to MOST_NODES.

        Raises:
            ConfigError: it can be laid out on none.
        """
        ledgers, refused = self._ledgers(node_counts(MOST_NODES), until_it_fits=True)
        if not ledgers:
            raise refused[0]
        last = ledgers[-1]
        return self._plan(last, most_tried=None if last.fits else MOST_NODES)

    def search(
        self, nodes: Sequence[int], objective: Objective = "seconds", option: str = "--nodes"
    ) -> Plan:
        """Plan the best placement and layouts over the given numbers of nodes.

        Args:
            nodes: numbers of nodes to compare.
            objective: what to minimise.
            option: command-line option that gave the largest number, for errors.

        Raises:
            ConfigError: nothing fits, or there are more ranks than a search takes.
        """
        sharded = _sharded(self._config)
        if sharded:
            megatron = "set it to megatron, or " * self._archs[sharded[0]].is_mapped
            raise ConfigError(
                f"{option}: the {sharded[0]} has parallel.engine = fsdp, which always shards over "
                "all ranks of its placement and leaves a search nothing to choose; "
                f"{megatron}plan without --search"
            )
        sizes = [count * self._per_node for count in nodes]
        if max(sizes) > MOST_SEARCHED_RANKS:
            raise ConfigError(
                f"{option} {max(nodes)} x {self._per_node} ranks = {max(sizes)}: a search takes up "
                f"to {MOST_SEARCHED_RANKS} ranks; give {MOST_SEARCHED_RANKS // self._per_node} "
                "nodes or fewer, or plan without a search"
            )
        best = search_sizes(
            self._config, self._archs, self._machine, sizes, objective, work=self._work
        )
        return self._plan(best.ledger, best)

    def _ledgers(
        self, counts: Sequence[int], until_it_fits: bool = False
    ) -> tuple[list[Ledger], list[VerlHpcError]]:
        """Ledgers on numbers of nodes, and why there are none on others."""
        ledgers: list[Ledger] = []
        refused: list[VerlHpcError] = []
        for nodes in counts:
            try:
                ledgers.append(self._ledger(nodes))
            except VerlHpcError as error:
                refused.append(error)
                continue
            if until_it_fits and ledgers[-1].fits:
                break
        return ledgers, refused

    def _ledger(self, nodes: int) -> Ledger:
        num_ranks = nodes * self._per_node
        return ledger_on(self._config, self._archs, num_ranks, self._machine.hardware, True)

    def _plan(
        self, memory: Ledger, found: Verified | None = None, most_tried: int | None = None
    ) -> Plan:
        step = predict_step(
            memory.config,
            self._archs,
            memory.layouts,
            self._machine,
            work=self._work,
            plans_transfer=memory.layouts.num_ranks <= _MOST_PLANNED_RANKS,
        )
        seconds = time.perf_counter() - self._began
        about = self._work, self._assumed, found, seconds, most_tried
        return Plan(self._archs, memory, step, *about)


def cheapest_change(memory: Ledger, archs: Archs) -> Remedy | None:
    """Find the cheapest change that makes a run fit, on its own ranks if possible, else on more;
    None if none is found."""
    ranks = memory.layouts.num_ranks
    for most in (ranks, _MORE_RANKS * ranks):
        change = remedy(memory.config, archs, ranks, memory.hardware, most)
        if change is not None:
            return change
    return None


def _sharded(config: RunConfig) -> list[str]:
    """Roles that fully_shard trains."""
    return [n for n, role in config.role_settings.items() if role.parallel.engine == "fsdp"]
