"""The fastest placement and layouts of a run on so many ranks.

Source: HybridFlow (arXiv 2409.19256), Algorithms 1 and 2. For every placement (set partition of the
models) and every allotment of ranks to its sets, each model has its layouts (Algorithm 2), and a
step takes what the flow makes of its operators' seconds. The paper takes each model's fastest
layout; here layouts are chosen together, since those of a set share its memory. The search is exact
by the time model and the memory ledger: branches are left out only where a bound says that even
their fastest layouts lose to what was found, or that their smallest do not fit; and what is found
fits by the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import ROLLOUT, SCORING
from verl_hpc.planner.search.choose import Chosen, RoleSet, choose, may_fit
from verl_hpc.planner.search.emit import Candidate, must_share, separated
from verl_hpc.planner.search.memory_bound import MemoryBound
from verl_hpc.planner.search.no_fit import why_nothing_fits
from verl_hpc.planner.search.options import Options
from verl_hpc.planner.search.placements import Partition, allotments, set_partitions, unit_of
from verl_hpc.planner.search.set_ledger import SearchedRun, set_fits
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.schedule import Flow, PlacedFlow
from verl_hpc.planner.timing.workload import Workload, workload_of


@dataclass
class Found:
    """Result of a search."""

    ranking: list[Candidate]
    """The best of every placement that fits, the fastest first."""
    misfits: list[Partition]
    """Placements of which nothing fits on the ranks."""
    placements: int = 0
    allotments: int = 0
    """Allotments compared, over all placements."""
    layouts: int = 0
    """Layouts compared, over all roles."""

    @property
    def best(self) -> Candidate:
        return self.ranking[0]


SPARE_BYTES = 2 * 2**30
"""Memory left free on every device, since activations are known to some 15 %."""


def search(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    num_ranks: int,
    *,
    work: Workload | None = None,
    spare_bytes: int = SPARE_BYTES,
) -> Found:
    """The placements of a run on `num_ranks` ranks, each with its best layouts.

    Args:
        config: of the run; its placement, layouts and rollout.tensor_parallel are searched, all
            else is kept.
        archs: of every role.
        machine: what it runs on; its nodes are full.
        num_ranks: of the job.
        work: None takes `workload_of(config)`.
        spare_bytes: left free on every device.

    Raises:
        ConfigError: nothing fits on so many ranks, or they fill no whole number of nodes.
    """
    per_node = machine.hardware.ranks_per_node
    if num_ranks > per_node and num_ranks % per_node:
        raise ConfigError(
            f"{num_ranks} ranks fill no whole number of nodes of {per_node}; search for a multiple"
        )
    work = work or workload_of(config)
    run = SearchedRun(config, separated(config), archs, machine, work, num_ranks, spare_bytes)
    return _Search(run).run()


class _Search:
    def __init__(self, run: SearchedRun) -> None:
        self._run, self._config, self._num_ranks = run, run.config, run.num_ranks
        self._shares = {
            name: one.shares
            for name, one in run.config.role_settings.items()
            if one.shares is not None
        }
        self._bound = MemoryBound(run)
        self._flow = Flow(run.config)
        self._options = Options(run, self._bound, self._flow.works)
        # Fixed seconds of each operator; the last entry is the refit.
        self._hosts = [run.machine.efficiency.operators] * len(self._flow.works) + [0.0]
        self._refits = run.config.generates and run.config.samples_to_train
        self._rollout_alone = self._refits and run.config.rollout.staleness > 0
        self._allotments = 0
        # Every allotment asks about the same sets on the same numbers of ranks.
        self._fits, self._least_seconds = cache(self._may_fit), cache(self._least)
        self._set_fits = cache(partial(set_fits, run))

    def run(self) -> Found:
        """Find the best candidate of each placement."""
        placements = self._placements()
        per_node = self._run.hardware.ranks_per_node
        unit = unit_of(self._num_ranks, per_node, [len(sets) for sets in placements])
        ranking, misfits = [], []
        for sets in placements:
            best = self._best_of(sets, unit)
            if best is None:
                misfits.append(sets)
            else:
                ranking.append(best)
        if not ranking:
            raise ConfigError(why_nothing_fits(self._run))
        ranking.sort(key=lambda candidate: candidate.seconds)
        counts = (len(placements), self._allotments, self._options.evaluated)
        return Found(ranking, misfits, *counts)

    def _placements(self) -> list[Partition]:
        """List the placements of the roles; a rollout with its own ranks is a set by itself."""
        pairs = [{*pair} for pair in must_share(self._config).items()]
        partitions = [
            sets
            for sets in set_partitions(tuple(self._run.settings))
            if all(any(pair.issubset(roles) for roles in sets) for pair in pairs)
        ]
        alone: Partition = ((ROLLOUT,),)
        return [(*sets, *(alone if self._rollout_alone else ())) for sets in partitions]

    def _best_of(self, sets: Partition, unit: int) -> Candidate | None:
        least = [self._least_ranks(roles, unit) for roles in sets]
        if None in least:
            return None
        placed = self._placed(sets)
        bounds = []
        known = [size for size in least if size is not None]
        for sizes in allotments(self._num_ranks, unit, known):
            self._allotments += 1
            if all(self._fits(roles, size) for roles, size in zip(sets, sizes, strict=True)):
                bounds.append((self._bound_seconds(placed, sets, sizes), sizes))
        # Best bound first, so that the search stops once a bound exceeds the best found.
        bounds.sort()
        best: tuple[Chosen, tuple[int, ...]] | None = None
        for bound, sizes in bounds:
            below = best[0].seconds if best is not None else float("inf")
            if bound >= below:
                break
            role_sets = [self._role_set(*pair) for pair in zip(sets, sizes, strict=True)]
            limits = self._bound.limits
            chosen = choose(placed.seconds, role_sets, self._hosts, limits, below)
            if chosen is not None:
                best = chosen, sizes
        return None if best is None else self._candidate(sets, best[1], best[0])

    def _bound_seconds(self, placed: PlacedFlow, sets: Partition, sizes: Sequence[int]) -> float:
        """Lower bound on the seconds of an allotment, whatever its layouts."""
        parts = [self._least_seconds(*pair) for pair in zip(sets, sizes, strict=True)]
        durations = [sum(amounts) for amounts in zip(self._hosts, *parts, strict=True)]
        return placed.seconds(durations[:-1], durations[-1])

    def _least(self, roles: tuple[str, ...], size: int) -> Sequence[float]:
        """Least seconds of each operator over the roles of a set, if each had the whole memory."""
        least = [front.least_seconds for front in self._role_set(roles, size).fronts.values()]
        return [sum(amounts) for amounts in zip(*least, strict=True)]

    def _placed(self, sets: Partition) -> PlacedFlow:
        place = {role: [i] for i, roles in enumerate(sets) for role in roles}
        place[SCORING] = place.setdefault(ROLLOUT, place[self._run.first])
        busy = {place[name][0] for name, one in self._run.settings.items() if one.trainable}
        return self._flow.on(place, busy)

    def _role_set(self, roles: tuple[str, ...], size: int) -> RoleSet:
        """The roles of a set that choose a layout."""
        owners = {role: self._shares[role] for role in roles if self._shares.get(role) in roles}
        beside = self._config.generates and not self._rollout_alone and self._run.first in roles
        fronts = {}
        for role in roles:
            if role not in owners:
                sharing = tuple(name for name, owner in owners.items() if owner == role)
                fronts[role] = self._options.of(role, size, beside, sharing)
        return RoleSet(
            fronts,
            self._bound.outside(size, has_roles=ROLLOUT not in roles),
            lambda options: self._set_fits(
                size,
                tuple((name, one.cut, one.rollout_tp) for name, one in options.items()),
                tuple(owners.items()),
            ),
        )

    def _least_ranks(self, roles: tuple[str, ...], unit: int) -> int | None:
        """The fewest ranks on which a set may fit (get_min_alloc of the paper); None if on none."""
        sizes = range(unit, self._num_ranks + 1, unit)
        return next((size for size in sizes if self._fits(roles, size)), None)

    def _may_fit(self, roles: tuple[str, ...], size: int) -> bool:
        """Whether a set may fit, by the memory bound."""
        return may_fit(self._role_set(roles, size), self._bound.limits)

    def _candidate(self, sets: Partition, sizes: tuple[int, ...], chosen: Chosen) -> Candidate:
        names = [work.name for work in self._flow.works]
        operators = dict(zip(names, chosen.durations, strict=False))
        if self._refits:
            operators["reshard"] = chosen.durations[-1]
        return Candidate(sets, sizes, chosen.options, chosen.seconds, operators)
