"""What to change so that a run fits: the cheapest changes first.

Changes are tried one by one in the order of what they cost, in time or in GPUs. The first that
makes the whole run fit is taken; if none does, the one that makes the phase fit that does not, or
helps it most, and the search goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import VerlHpcError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.hardware import Hardware
from verl_hpc.planner.layouts import run_layouts
from verl_hpc.planner.memory.ledger import Ledger, ledger
from verl_hpc.planner.memory.phase import Phase

_MOST_CHANGES = 12
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)
_LARGEST_TP, _LARGEST_ENGINE = 16, 64

Settings = Mapping[str, Any]
"""By dotted name."""


@dataclass(frozen=True)
class Step:
    """One change of settings, or of the number of ranks."""

    settings: Settings
    num_ranks: int


def _yaml(value: object) -> str:
    """As a configuration writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Remedy:
    """Changes that make a run fit, together."""

    steps: tuple[Step, ...]
    config: RunConfig
    num_ranks: int
    asked_ranks: int
    """Before the changes."""
    ledger: Ledger

    @property
    def settings(self) -> dict[str, Any]:
        """All of them, the last of each name."""
        return {name: value for step in self.steps for name, value in step.settings.items()}

    def __str__(self) -> str:
        words = [f"{name}: {_yaml(v)}" for name, v in self.settings.items() if v is not None]
        ranks = [f"{self.num_ranks} ranks"] if self.num_ranks != self.asked_ranks else []
        return "; ".join(words + ranks) or "no change"


@dataclass(frozen=True)
class _Case:
    """A configuration on so many ranks, with its ledger."""

    config: RunConfig
    num_ranks: int
    ledger: Ledger


def remedy(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    num_ranks: int,
    hardware: Hardware,
    most_ranks: int | None = None,
) -> Remedy | None:
    """The cheapest changes found that make a run fit; none of them where it does.

    Args:
        config: of the run.
        archs: of every role's model.
        num_ranks: that it was asked for.
        hardware: of the nodes.
        most_ranks: that there are; None does not ask for more.

    Returns:
        None where nothing that is tried makes it fit.
    """
    case = _case(config, archs, num_ranks, hardware)
    steps: list[Step] = []
    while case is not None and len(steps) < _MOST_CHANGES:
        misfit = case.ledger.first_misfit
        if misfit is None:
            return Remedy(tuple(steps), case.config, case.num_ranks, num_ranks, case.ledger)
        found = _best(case, misfit, archs, hardware, most_ranks or num_ranks)
        if found is None:
            return None
        step, case = found
        steps.append(step)
    return None


def _best(
    case: _Case,
    misfit: Phase,
    archs: Mapping[str, Architecture],
    hardware: Hardware,
    most_ranks: int,
) -> tuple[Step, _Case] | None:
    tried: list[tuple[Step, _Case, Phase]] = []
    for step in _candidates(case, misfit, most_ranks):
        other = _changed(case, step, archs, hardware)
        if other is None:
            continue
        if other.ledger.fits:
            return step, other
        same = _same(other.ledger, misfit)
        if same is not None:
            tried.append((step, other, same))
    helpful = [entry for entry in tried if entry[2].fits]
    if helpful:
        return helpful[0][:2]
    before = _excess(misfit)
    better = [entry for entry in tried if _excess(entry[2]) < before]
    if not better:
        return None
    step, other, _ = min(better, key=lambda entry: _excess(entry[2]))
    return step, other


def _same(found: Ledger, misfit: Phase) -> Phase | None:
    """The same phase of another ledger."""
    name = misfit.name, misfit.of
    return next((phase for phase in found.all_phases if (phase.name, phase.of) == name), None)


def _excess(phase: Phase) -> float:
    """By how much a phase does not fit, in bytes: of a refusal, what the engine would need."""
    rooms = [room for room in (phase.room_bytes, phase.host_room_bytes) if room is not None]
    return -min(rooms, default=0) + phase.needed_bytes * (phase.problem is not None)


def _case(
    config: RunConfig, archs: Mapping[str, Architecture], num_ranks: int, hardware: Hardware
) -> _Case | None:
    """None where the configuration cannot be laid out."""
    try:
        first = archs[next(iter(config.role_settings))]
        layouts = run_layouts(
            config, first, num_ranks, archs=archs, ranks_per_node=hardware.ranks_per_node
        )
        return _Case(config, num_ranks, ledger(config, archs, layouts, hardware))
    except VerlHpcError:
        return None


def _changed(
    case: _Case, step: Step, archs: Mapping[str, Architecture], hardware: Hardware
) -> _Case | None:
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


def _candidates(case: _Case, misfit: Phase, most_ranks: int) -> Iterator[Step]:
    """Changes that may help a phase, those that cost least first."""
    kinds: dict[str, tuple[_Kind, ...]] = {
        "build": (_share, _engine_size, _layout, _ranks),
        "load": (_layout, _ranks),
        "reshard": (_engine_size, _layout, _ranks),
        "generate": (_offload, _smaller_share, _engine_size, _layout, _ranks),
        "log_probs": (_micro_batch, _sequence, _layout, _ranks),
        "update": (_micro_batch, _sequence, _recompute, _layout, _ranks),
        "save": (_layout, _ranks),
    }
    for kind in kinds[misfit.name]:
        for settings, num_ranks in kind(case, misfit):
            if num_ranks <= max(most_ranks, case.num_ranks):
                yield Step(settings, num_ranks)


_Kind = Callable[[_Case, Phase], Iterator[tuple[Settings, int]]]


def _parallel_sections(case: _Case, misfit: Phase) -> list[str]:
    """Where the sizes of the role's layout are set: the shared section, or its own."""
    names = [misfit.of] if misfit.of in case.config.roles else list(case.config.roles)
    own = [n for n in names if case.config.roles[n].parallel is not None]
    return [f"roles.{name}.parallel" for name in own] or ["parallel"]


def _of_parallel(case: _Case, section: str) -> Any:
    if section == "parallel":
        return case.config.parallel
    return case.config.roles[section.split(".")[1]].parallel


def _share(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    if misfit.problem is None:
        return
    for share in _SHARES:
        if share > case.config.rollout.gpu_memory_utilization:
            yield {"rollout.gpu_memory_utilization": share}, case.num_ranks


def _smaller_share(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    del misfit
    for share in reversed((0.3, 0.4, *_SHARES)):
        if share < case.config.rollout.gpu_memory_utilization:
            yield {"rollout.gpu_memory_utilization": share}, case.num_ranks


def _engine_size(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """More GPUs for each rollout engine, of those that there are."""
    del misfit
    rollout = case.config.rollout
    tp, pp = rollout.tensor_parallel, rollout.pipeline_parallel
    while tp * pp < _LARGEST_ENGINE:
        tp *= 2
        changed = {"rollout.tensor_parallel": tp}
        yield changed, case.num_ranks
        if pp == 1 and rollout.grouping is None:
            yield {"rollout.pipeline_parallel": tp // rollout.tensor_parallel}, case.num_ranks


def _offload(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    del misfit
    parts = ("gradients", "optimizer", "parameters")
    now = {part: bool(getattr(case.config.offload, part)) for part in parts}
    for count in range(1, len(parts) + 1):
        wanted = {f"offload.{part}": True for part in parts[:count] if not now[part]}
        if wanted:
            yield wanted, case.num_ranks


def _micro_batch(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    del misfit
    config = case.config
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    tokens = config.batch.max_tokens_per_micro_batch
    while tokens > longest:
        tokens = max(tokens // 2, longest)
        yield {"batch.max_tokens_per_micro_batch": tokens}, case.num_ranks


def _sequence(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    for section in _parallel_sections(case, misfit):
        sizes = _of_parallel(case, section)
        if sizes.tensor_parallel > 1 and not sizes.sequence_parallel:
            yield {f"{section}.sequence_parallel": True}, case.num_ranks


def _recompute(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    kinds = ("none", "selective", "full")
    for section in _parallel_sections(case, misfit):
        now = _of_parallel(case, section).recompute
        for kind in kinds[kinds.index(now) + 1 :]:
            changed = {f"{section}.recompute": kind, f"{section}.recompute_modules": None}
            yield changed, case.num_ranks


def _layout(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """More model-parallel ranks, of those that there are."""
    for section in _parallel_sections(case, misfit):
        sizes = _of_parallel(case, section)
        if sizes.tensor_parallel < _LARGEST_TP:
            yield {f"{section}.tensor_parallel": 2 * sizes.tensor_parallel}, case.num_ranks
        yield {f"{section}.pipeline_parallel": 2 * sizes.pipeline_parallel}, case.num_ranks


def _ranks(case: _Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """More GPUs: replicas share the optimizer's state, or stages the layers."""
    yield {}, 2 * case.num_ranks
    for changed, num_ranks in _layout(case, misfit):
        yield changed, 2 * num_ranks
