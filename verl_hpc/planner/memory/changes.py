"""Find changes that make a run fit, the cheapest first.

Changes are tried one by one in the order of what they cost, in time or in GPUs. The first that
makes the whole run fit is taken. If none does, the one that makes the failing phase fit, or helps
it most, is applied, and the search continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import VerlHpcError
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.candidates import Case, Step, candidates
from verl_hpc.planner.memory.ledger import Ledger, ledger
from verl_hpc.planner.memory.phase import Phase

_MOST_CHANGES = 12


def _yaml(value: object) -> str:
    """Format a value as YAML does."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Remedy:
    """Changes that make a run fit, together."""

    steps: tuple[Step, ...]
    config: RunConfig
    num_ranks: int
    asked_ranks: int
    """Number of ranks before the changes."""
    ledger: Ledger

    @property
    def settings(self) -> dict[str, Any]:
        """All changed settings; a later step overrides an earlier one."""
        return {name: value for step in self.steps for name, value in step.settings.items()}

    def __str__(self) -> str:
        words = [f"{name}: {_yaml(v)}" for name, v in self.settings.items() if v is not None]
        size = [self._size()] if self.num_ranks != self.asked_ranks else []
        return "; ".join(words + size) or "no change"

    def _size(self) -> str:
        nodes, rest = divmod(self.num_ranks, self.ledger.hardware.ranks_per_node)
        ranks = f"{self.num_ranks} ranks"
        return ranks if rest else f"{nodes} node{'s' * (nodes > 1)} ({ranks})"


def remedy(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    num_ranks: int,
    hardware: Hardware,
    most_ranks: int | None = None,
) -> Remedy | None:
    """Find the cheapest changes that make a run fit; a remedy without steps if it fits already.

    Args:
        config: of the run.
        archs: of every role's model.
        num_ranks: of the run before any change.
        hardware: of the nodes.
        most_ranks: available ranks; None allows no more than `num_ranks`.

    Returns:
        None if no change that is tried makes it fit.
    """
    case = _case(config, archs, num_ranks, hardware)
    steps: list[Step] = []
    while case is not None and len(steps) < _MOST_CHANGES:
        misfit = case.ledger.first_misfit
        if misfit is None:
            return Remedy(tuple(steps), case.config, case.num_ranks, num_ranks, case.ledger)
        best = _best(case, misfit, archs, hardware, most_ranks or num_ranks)
        if best is None:
            return None
        step, case = best
        steps.append(step)
    return None


def _best(
    case: Case,
    misfit: Phase,
    archs: Mapping[str, Architecture],
    hardware: Hardware,
    most_ranks: int,
) -> tuple[Step, Case] | None:
    tried: list[tuple[Step, Case, Phase]] = []
    for step in candidates(case, misfit, most_ranks):
        other = _changed(case, step, archs, hardware)
        if other is None:
            continue
        if other.ledger.fits:
            return step, other
        same = _same(other.ledger, misfit)
        if same is not None:
            tried.append((step, other, same))
    helpful = [entry for entry in tried if entry[2].fits]
    # A change may move bytes from device to host memory or back: prefer one that adds no misfit.
    for entry in helpful:
        if _misfits(entry[1].ledger) < _misfits(case.ledger):
            return entry[:2]
    if helpful:
        return helpful[0][:2]
    before = _excess(misfit)
    better = [entry for entry in tried if _excess(entry[2]) < before]
    if not better:
        return None
    step, other, _ = min(better, key=lambda entry: _excess(entry[2]))
    return step, other


def _misfits(found: Ledger) -> set[tuple[str, str]]:
    """Phases that do not fit."""
    return {(phase.name, phase.of) for phase in found.all_phases if not phase.fits}


def _same(found: Ledger, misfit: Phase) -> Phase | None:
    """Find the same phase in another ledger."""
    name = misfit.name, misfit.of
    return next((phase for phase in found.all_phases if (phase.name, phase.of) == name), None)


def _excess(phase: Phase) -> float:
    """Bytes by which a phase exceeds its limits; for a refused engine, including what it needs."""
    rooms = [room for room in (phase.room_bytes, phase.host_room_bytes) if room is not None]
    return -min(rooms, default=0) + phase.needed_bytes * (phase.problem is not None)


def _case(
    config: RunConfig, archs: Mapping[str, Architecture], num_ranks: int, hardware: Hardware
) -> Case | None:
    """Lay out a configuration; None where that is impossible."""
    try:
        first = archs[next(iter(config.role_settings))]
        layouts = run_layouts(
            config, first, num_ranks, archs=archs, ranks_per_node=hardware.ranks_per_node
        )
        return Case(config, num_ranks, ledger(config, archs, layouts, hardware))
    except VerlHpcError:
        return None


def _changed(
    case: Case, step: Step, archs: Mapping[str, Architecture], hardware: Hardware
) -> Case | None:
    tree = case.config.model_dump(mode="json")
    for name, value in step.settings.items():
        *sections, last = name.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[last] = value
    try:
        config = parse_config(tree) if step.settings else case.config
    except VerlHpcError:
        return None
    return _case(config, archs, step.num_ranks, hardware)
