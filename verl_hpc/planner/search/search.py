"""The fastest placement and layouts of a run on so many ranks.

Source: HybridFlow (arXiv 2409.19256), Algorithms 1 and 2. For every placement (set partition of the
models) and every allotment of ranks to its sets, each model has its layouts (Algorithm 2), and a
step takes what the flow makes of its operators' seconds. The paper takes each model's fastest
layout; here layouts are chosen together, since those of a set share its memory. The search is exact
by the models that it is given: branches are left out only where even their fastest layouts, memory
aside, lose to what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.layouts import ROLLOUT
from verl_hpc.planner.search.choose import Chosen, Seat, choose
from verl_hpc.planner.search.flow_time import FlowTime, Placed
from verl_hpc.planner.search.memory import FormulaMemory, Memory
from verl_hpc.planner.search.options import Option, Options, smallest
from verl_hpc.planner.search.placements import Sets, allotments, set_partitions, unit_of
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload, workload_of


@dataclass(frozen=True)
class Candidate:
    """The best of one placement."""

    sets: Sets
    """Roles that share ranks; a reference that computes in another role's engine is with it."""
    sizes: tuple[int, ...]
    """Ranks of each set."""
    options: Mapping[str, Option]
    """Of each role that has an engine, and of ROLLOUT where its ranks are its own."""
    seconds: float
    """Of a step."""
    operators: Mapping[str, float]
    """Seconds of each, with `reshard`."""

    @property
    def num_ranks(self) -> int:
        return sum(self.sizes)

    @property
    def gpu_hours(self) -> float:
        """Of a step."""
        return self.num_ranks * self.seconds / 3600

    @property
    def rollout_tp(self) -> int | None:
        return next((o.rollout_tp for o in self.options.values() if o.rollout_tp), None)


@dataclass
class Found:
    """What a search found."""

    ranking: list[Candidate]
    """The best of every placement that fits, the fastest first."""
    misfits: list[Sets]
    """Placements of which nothing fits on the ranks."""
    placements: int = 0
    allotments: int = 0
    """That were compared, on all placements."""
    layouts: int = 0
    """Whose seconds and bytes were worked out."""

    @property
    def best(self) -> Candidate:
        return self.ranking[0]


@dataclass
class _Space:
    config: RunConfig
    options: Options
    flow: FlowTime
    limit: int | None
    hosts: Sequence[float]
    """Seconds of each operator that no choice changes."""
    shares: Mapping[str, str]
    """The owner of the engine that a role may compute in."""
    trained: frozenset[str]
    first: str
    rollout_alone: bool
    generates: bool
    counted: int = 0
    feasible: dict[tuple[tuple[str, ...], int], bool] = field(default_factory=dict)
    least: dict[tuple[tuple[str, ...], int], Sequence[float]] = field(default_factory=dict)


def search(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    num_ranks: int,
    *,
    work: Workload | None = None,
    memory: Memory | None = None,
) -> Found:
    """The placements of a run on `num_ranks` ranks, each with its best layouts.

    Args:
        config: of the run; its placement, layouts and rollout.tensor_parallel are searched, all
            else is kept.
        archs: of every role.
        machine: what it runs on; its nodes are full.
        num_ranks: of the job.
        work: None takes `workload_of(config)`.
        memory: None takes the formulas.

    Raises:
        ConfigError: nothing fits on so many ranks, or they fill no whole number of nodes.
    """
    per_node = machine.hardware.ranks_per_node
    if num_ranks > per_node and num_ranks % per_node:
        raise ConfigError(
            f"{num_ranks} ranks fill no whole number of nodes of {per_node}; search for a multiple"
        )
    space = _space(config, archs, machine, work or workload_of(config), memory)
    placements = _placements(space)
    unit = unit_of(num_ranks, per_node, [len(sets) for sets in placements])
    found, misfits = [], []
    for sets in placements:
        best = _best_of(space, sets, num_ranks, unit)
        if best is None:
            misfits.append(sets)
        else:
            found.append(best)
    if not found:
        raise ConfigError(
            f"nothing fits on {num_ranks} ranks of {machine.hardware.kind.name}: start more, or "
            "set offload, smaller micro-batches (batch.max_tokens_per_micro_batch) or a smaller "
            "rollout.gpu_memory_utilization"
        )
    found.sort(key=lambda candidate: candidate.seconds)
    return Found(found, misfits, len(placements), space.counted, space.options.evaluated)


def _space(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    machine: Machine,
    work: Workload,
    memory: Memory | None,
) -> _Space:
    flow, settings = FlowTime(config), config.role_settings
    memory = memory or FormulaMemory(config, archs, machine.hardware, work)
    generates = config.generates and config.samples_to_train
    return _Space(
        config,
        Options(config, archs, machine, work, memory, flow.works),
        flow,
        memory.limit,
        [machine.efficiency.operators] * len(flow.works) + [0.0],
        {name: one.shares for name, one in settings.items() if one.shares is not None},
        frozenset(name for name, one in settings.items() if one.trainable),
        next(iter(settings)),
        generates and config.rollout.staleness > 0,
        generates,
    )


def _placements(space: _Space) -> list[Sets]:
    """Of the roles; rollout ranks of their own are a set by themselves."""
    found = set_partitions(tuple(space.config.role_settings))
    alone: Sets = ((ROLLOUT,),)
    return [(*sets, *(alone if space.rollout_alone else ())) for sets in found]


def _best_of(space: _Space, sets: Sets, num_ranks: int, unit: int) -> Candidate | None:
    least = [_least(space, roles, num_ranks, unit) for roles in sets]
    if None in least:
        return None
    placed = _placed(space, sets)
    bounds = []
    for sizes in allotments(num_ranks, unit, [size for size in least if size is not None]):
        space.counted += 1
        if all(_fits(space, roles, size) for roles, size in zip(sets, sizes, strict=True)):
            bounds.append((_bound(space, placed, sets, sizes), sizes))
    bounds.sort()
    best: tuple[Chosen, tuple[int, ...]] | None = None
    for bound, sizes in bounds:
        below = best[0].seconds if best is not None else float("inf")
        if bound >= below:
            break
        seats = _seats(space, sets, sizes)
        found = choose(placed.seconds, seats, space.hosts, space.limit, below)
        if found is not None:
            best = found, sizes
    return None if best is None else _candidate(space, sets, best[1], best[0])


def _bound(space: _Space, placed: Placed, sets: Sets, sizes: Sequence[int]) -> float:
    """Seconds that no layouts of an allotment can undercut."""
    parts = [_least_seconds(space, roles, size) for roles, size in zip(sets, sizes, strict=True)]
    durations = [sum(found) for found in zip(space.hosts, *parts, strict=True)]
    return placed.seconds(durations[:-1], durations[-1])


def _least_seconds(space: _Space, roles: tuple[str, ...], size: int) -> Sequence[float]:
    """Of each operator, by the roles of a set, memory aside."""
    key = (roles, size)
    if key not in space.least:
        seats = _seats_of(space, roles, size, 0)
        found = [seat.least_seconds for seat in seats]
        space.least[key] = [sum(amounts) for amounts in zip(*found, strict=True)]
    return space.least[key]


def _placed(space: _Space, sets: Sets) -> Placed:
    number = {role: i for i, roles in enumerate(sets) for role in roles}
    number.setdefault(ROLLOUT, number[space.first])
    trains = [bool(space.trained.intersection(roles)) for roles in sets]
    return space.flow.on(number, trains)


def _seats(space: _Space, sets: Sets, sizes: Sequence[int]) -> list[Seat]:
    """The roles that choose a layout, set by set."""
    return [
        seat
        for number, (roles, size) in enumerate(zip(sets, sizes, strict=True))
        for seat in _seats_of(space, roles, size, number)
    ]


def _seats_of(space: _Space, roles: tuple[str, ...], size: int, number: int) -> list[Seat]:
    shared = {role: space.shares[role] for role in roles if space.shares.get(role) in roles}
    beside = space.generates and not space.rollout_alone and space.first in roles
    found = []
    for role in roles:
        if role in shared:
            continue
        sharing = tuple(name for name, owner in shared.items() if owner == role)
        found.append(Seat(role, number, space.options.of(role, size, beside, sharing)))
    return found


def _least(space: _Space, roles: tuple[str, ...], num_ranks: int, unit: int) -> int | None:
    """The fewest ranks on which a set fits (get_min_alloc of the paper); None if on none."""
    for size in range(unit, num_ranks + 1, unit):
        if _fits(space, roles, size):
            return size
    return None


def _fits(space: _Space, roles: tuple[str, ...], size: int) -> bool:
    key = (roles, size)
    if key not in space.feasible:
        seats = [
            Seat(seat.role, 0, smallest(seat.options)) for seat in _seats_of(space, roles, size, 0)
        ]
        hosts = [0.0] * len(space.hosts)
        found = choose(lambda *_: 0.0, seats, hosts, space.limit, 1.0)
        space.feasible[key] = found is not None
    return space.feasible[key]


def _candidate(space: _Space, sets: Sets, sizes: tuple[int, ...], chosen: Chosen) -> Candidate:
    operators = dict(zip(space.flow.names, chosen.durations, strict=False))
    if space.generates:
        operators["reshard"] = chosen.durations[-1]
    return Candidate(sets, sizes, chosen.options, chosen.seconds, operators)
