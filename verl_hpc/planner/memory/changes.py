"""Find changes that make a run fit, the cheapest first.

Changes are tried one by one in the order of what they cost, in time or in GPUs. The first that
makes the whole run fit is taken. If none does, the one that makes the failing phase fit, or helps
it most, is applied, and the search continues from there. A change that is about other memory than
what is lacking leaves the failing phase as it is, and is so passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.config.load import parse_config
from verl_hpc.config.model import ParallelConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tree import put
from verl_hpc.errors import VerlHpcError
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.memory.ledger import Ledger, ledger_on
from verl_hpc.planner.memory.phase import Phase
from verl_hpc.planner.memory.step_rows import longest_sequence

_MOST_CHANGES = 12
_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9)
_LARGEST_TP, _LARGEST_ENGINE = 16, 64
_PARTS = ("gradients", "optimizer", "parameters")
"""Settings of `offload`, cheapest first."""

Settings = Mapping[str, Any]
"""Values by dotted setting name."""


@dataclass(frozen=True)
class Remedy:
    """Changes that make a run fit, together."""

    settings: Settings
    asked_ranks: int
    """Number of ranks before the changes."""
    ledger: Ledger

    @property
    def config(self) -> RunConfig:
        return self.ledger.config

    @property
    def num_ranks(self) -> int:
        return self.ledger.layouts.num_ranks

    def __str__(self) -> str:
        # As YAML has it: true, and not True.
        words = [
            f"{name}: {str(v).lower() if isinstance(v, bool) else v}"
            for name, v in self.settings.items()
            if v is not None
        ]
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
    """Find the cheapest changes that make a run fit; a remedy without settings if it fits already.

    Args:
        config: of the run.
        archs: of every role's model.
        num_ranks: of the run before any change.
        hardware: of the nodes.
        most_ranks: available ranks; None allows no more than `num_ranks`.

    Returns:
        None if no change that is tried makes it fit.
    """
    now = _laid_out(config, archs, num_ranks, hardware)
    changed: Settings = {}
    for _ in range(_MOST_CHANGES):
        if now is None:
            return None
        if now.fits:
            return Remedy(changed, num_ranks, now)
        settings, now = _best(now, archs, most_ranks or num_ranks)
        changed = {**changed, **settings}
    return None


def _best(
    now: Ledger, archs: Mapping[str, Architecture], most_ranks: int
) -> tuple[Settings, Ledger | None]:
    """Return the change to apply, and the ledger with it; None where none helps."""
    misfit = now.first_misfit
    assert misfit is not None
    tried: list[tuple[Settings, Ledger, Phase]] = []
    for settings, num_ranks in _changes(now, misfit):
        if num_ranks > max(most_ranks, now.layouts.num_ranks):
            continue
        other = _changed(now, settings, archs, num_ranks)
        if other is None:
            continue
        if other.fits:
            return settings, other
        tried += [(settings, other, phase) for phase in other.all_phases if phase.key == misfit.key]
    helpful = [entry for entry in tried if entry[2].fits]
    # A change may move bytes from device to host memory or back: prefer one that adds no misfit.
    fewer = [entry for entry in helpful if _misfits(entry[1]) < _misfits(now)]
    if helpful:
        return (fewer or helpful)[0][:2]
    better = [entry for entry in tried if _excess(entry[2]) < _excess(misfit)]
    return min(better, key=lambda entry: _excess(entry[2]))[:2] if better else ({}, None)


def _misfits(found: Ledger) -> set[tuple[str, str]]:
    """Phases that do not fit."""
    return {phase.key for phase in found.all_phases if not phase.fits}


def _excess(phase: Phase) -> float:
    """Bytes by which a phase exceeds its limits; for a refused engine, including what it needs."""
    rooms = [room for room in (phase.room_bytes, phase.host_room_bytes) if room is not None]
    return -min(rooms, default=0) + phase.needed_bytes * (phase.problem is not None)


def _laid_out(
    config: RunConfig, archs: Mapping[str, Architecture], num_ranks: int, hardware: Hardware
) -> Ledger | None:
    """Return the ledger of a configuration; None where it cannot be laid out."""
    try:
        told = ledger_on(config, archs, num_ranks, hardware)
        # What seems to fit must also fit with the peers that are counted for the run itself.
        counts = told.fits and hardware.kind.is_gpu
        return ledger_on(config, archs, num_ranks, hardware, counts) if counts else told
    except VerlHpcError:
        return None


def _changed(
    now: Ledger, settings: Settings, archs: Mapping[str, Architecture], num_ranks: int
) -> Ledger | None:
    tree = now.config.model_dump(mode="json")
    for name, value in settings.items():
        put(tree, name, value)
    try:
        config = parse_config(tree) if settings else now.config
    except VerlHpcError:
        return None
    return _laid_out(config, archs, num_ranks, now.hardware)


def _changes(now: Ledger, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """Yield settings and numbers of ranks that may help a phase, those that cost least first."""
    config, num_ranks = now.config, now.layouts.num_ranks
    # Tensor parallelism stays within a node, since every layer waits for its collectives.
    most_tp = min(_LARGEST_TP, now.hardware.ranks_per_node)
    sections = _parallel_sections(config, misfit)
    layouts = list(_larger_layouts(sections, most_tp))
    yield from ((settings, num_ranks) for settings in _of_host(config))
    yield from ((settings, num_ranks) for settings in _of_passes(config, sections))
    yield from ((settings, num_ranks) for settings in _of_generation(config, most_tp))
    yield from ((settings, num_ranks) for settings in layouts)
    # Replicas share the optimizer state of more GPUs, or stages share the layers.
    yield from ((settings, 2 * num_ranks) for settings in ({}, *layouts))


def _parallel_sections(config: RunConfig, misfit: Phase) -> dict[str, ParallelConfig]:
    """Sections that set the role's parallel sizes: the role's own or the shared one."""
    names = [misfit.of] if misfit.of in config.roles else list(config.roles)
    own = {f"roles.{name}.parallel": config.roles[name].parallel for name in names}
    return {name: one for name, one in own.items() if one} or {"parallel": config.parallel}


def _of_host(config: RunConfig) -> Iterator[Settings]:
    """Save in the foreground, as a background save is written from a copy; then keep parts on the
    device, which need no copy then (gradients never have one)."""
    if config.checkpoint.background:
        yield {"checkpoint.background": False}
    away = [part for part in _PARTS[1:] if getattr(config.offload, part)]
    for parts in (away[-1:], away[:1], away):
        if parts:
            yield {f"offload.{part}": False for part in parts}


def _of_passes(config: RunConfig, sections: Mapping[str, ParallelConfig]) -> Iterator[Settings]:
    """Use smaller micro-batches, share activations, or recompute them."""
    longest, tokens = longest_sequence(config), config.batch.max_tokens_per_micro_batch
    while tokens > longest:
        tokens = max(tokens // 2, longest)
        yield {"batch.max_tokens_per_micro_batch": tokens}
    for section, sizes in sections.items():
        if sizes.tensor_parallel > 1 and not sizes.sequence_parallel:
            yield {f"{section}.sequence_parallel": True}
    kinds = ("none", "selective", "full")
    for section, sizes in sections.items():
        for kind in kinds[kinds.index(sizes.recompute) + 1 :]:
            yield {f"{section}.recompute": kind, f"{section}.recompute_modules": None}


def _of_generation(config: RunConfig, most_tp: int) -> Iterator[Settings]:
    """Offload more while engines generate, give them another share of the device, or more of the
    GPUs each."""
    stays = [part for part in _PARTS if not getattr(config.offload, part)]
    for count in range(1, len(stays) + 1):
        yield {f"offload.{part}": True for part in stays[:count]}
    rollout = config.rollout
    now = rollout.gpu_memory_utilization
    shares = [share for share in _SHARES if share > now]
    for share in (*shares, *(share for share in reversed(_SHARES) if share < now)):
        yield {"rollout.gpu_memory_utilization": share}
    tp, pp = rollout.tensor_parallel, rollout.pipeline_parallel
    size = tp * pp
    while size < _LARGEST_ENGINE:
        size *= 2
        if size // pp <= most_tp:
            yield {"rollout.tensor_parallel": size // pp}
        if pp > 1 or rollout.grouping is not None:
            continue
        yield {"rollout.pipeline_parallel": size // tp}
        if tp < most_tp < size:
            both = {"tensor_parallel": most_tp, "pipeline_parallel": size // most_tp}
            yield {f"rollout.{name}": value for name, value in both.items()}


def _larger_layouts(sections: Mapping[str, ParallelConfig], most_tp: int) -> Iterator[Settings]:
    """Use more of the ranks for model parallelism."""
    for section, sizes in sections.items():
        if 2 * sizes.tensor_parallel <= most_tp:
            yield {f"{section}.tensor_parallel": 2 * sizes.tensor_parallel}
        yield {f"{section}.pipeline_parallel": 2 * sizes.pipeline_parallel}
