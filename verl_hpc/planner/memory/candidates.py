"""Single changes that may make a phase fit, those that cost least first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.config.run import RunConfig
from verl_hpc.planner.memory.ledger import Ledger
from verl_hpc.planner.memory.phase import Phase
from verl_hpc.planner.memory.step_rows import longest_sequence

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)
_LARGEST_TP, _LARGEST_ENGINE = 16, 64
_PARTS = ("gradients", "optimizer", "parameters")
"""Settings of `offload`, cheapest first."""

Settings = Mapping[str, Any]
"""Values by dotted setting name."""


@dataclass(frozen=True)
class Step:
    """One change of settings, or of the number of ranks."""

    settings: Settings
    num_ranks: int


@dataclass(frozen=True)
class Case:
    """A configuration on so many ranks, with its ledger."""

    config: RunConfig
    num_ranks: int
    ledger: Ledger

    @property
    def largest_tp(self) -> int:
        """Largest tensor-parallel size tried: it stays within a node, since every layer waits for
        its collectives."""
        return min(_LARGEST_TP, self.ledger.hardware.ranks_per_node)


def candidates(case: Case, misfit: Phase, most_ranks: int) -> Iterator[Step]:
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
    chosen = kinds[misfit.name]
    if misfit.lacks_host_memory:
        # On cores host memory is all there is, and what helps a device helps as well.
        instead = (_wait_for_save, _less_offload)
        chosen = (*instead, *(chosen if misfit.is_shared else (_layout, _ranks)))
    for kind in chosen:
        for settings, num_ranks in kind(case, misfit):
            if num_ranks <= max(most_ranks, case.num_ranks):
                yield Step(settings, num_ranks)


_Kind = Callable[[Case, Phase], Iterator[tuple[Settings, int]]]


def _parallel_sections(case: Case, misfit: Phase) -> list[str]:
    """Sections that set the role's parallel sizes: the role's own or the shared one."""
    names = [misfit.of] if misfit.of in case.config.roles else list(case.config.roles)
    own = [n for n in names if case.config.roles[n].parallel is not None]
    return [f"roles.{name}.parallel" for name in own] or ["parallel"]


def _of_parallel(case: Case, section: str) -> Any:
    if section == "parallel":
        return case.config.parallel
    return case.config.roles[section.split(".")[1]].parallel


def _share(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    if misfit.problem is None:
        return
    for share in _SHARES:
        if share > case.config.rollout.gpu_memory_utilization:
            yield {"rollout.gpu_memory_utilization": share}, case.num_ranks


def _smaller_share(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    del misfit
    for share in reversed((0.3, 0.4, *_SHARES)):
        if share < case.config.rollout.gpu_memory_utilization:
            yield {"rollout.gpu_memory_utilization": share}, case.num_ranks


def _engine_size(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """Give each rollout engine more of the available GPUs."""
    del misfit
    rollout, most = case.config.rollout, case.largest_tp
    tp, pp = rollout.tensor_parallel, rollout.pipeline_parallel
    size = tp * pp
    while size < _LARGEST_ENGINE:
        size *= 2
        if size // pp <= most:
            yield {"rollout.tensor_parallel": size // pp}, case.num_ranks
        if pp > 1 or rollout.grouping is not None:
            continue
        yield {"rollout.pipeline_parallel": size // tp}, case.num_ranks
        if tp < most < size:
            both = {"tensor_parallel": most, "pipeline_parallel": size // most}
            yield {f"rollout.{name}": value for name, value in both.items()}, case.num_ranks


def _wait_for_save(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """Save in the foreground, as a background save is written from a copy."""
    if misfit.name == "save" and case.config.checkpoint.background:
        yield {"checkpoint.background": False}, case.num_ranks


def _less_offload(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """Keep parts on the device, which need no copy in host memory then; gradients never have
    one."""
    del misfit
    now = [part for part in _PARTS[1:] if getattr(case.config.offload, part)]
    for parts in (now[-1:], now[:1], now):
        if parts:
            yield {f"offload.{part}": False for part in parts}, case.num_ranks


def _offload(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    del misfit
    now = {part: bool(getattr(case.config.offload, part)) for part in _PARTS}
    for count in range(1, len(_PARTS) + 1):
        wanted = {f"offload.{part}": True for part in _PARTS[:count] if not now[part]}
        if wanted:
            yield wanted, case.num_ranks


def _micro_batch(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    del misfit
    config = case.config
    longest = longest_sequence(config)
    tokens = config.batch.max_tokens_per_micro_batch
    while tokens > longest:
        tokens = max(tokens // 2, longest)
        yield {"batch.max_tokens_per_micro_batch": tokens}, case.num_ranks


def _sequence(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    for section in _parallel_sections(case, misfit):
        sizes = _of_parallel(case, section)
        if sizes.tensor_parallel > 1 and not sizes.sequence_parallel:
            yield {f"{section}.sequence_parallel": True}, case.num_ranks


def _recompute(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    kinds = ("none", "selective", "full")
    for section in _parallel_sections(case, misfit):
        now = _of_parallel(case, section).recompute
        for kind in kinds[kinds.index(now) + 1 :]:
            changed = {f"{section}.recompute": kind, f"{section}.recompute_modules": None}
            yield changed, case.num_ranks


def _layout(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """Use more of the available ranks for model parallelism."""
    for section in _parallel_sections(case, misfit):
        sizes = _of_parallel(case, section)
        if 2 * sizes.tensor_parallel <= case.largest_tp:
            yield {f"{section}.tensor_parallel": 2 * sizes.tensor_parallel}, case.num_ranks
        yield {f"{section}.pipeline_parallel": 2 * sizes.pipeline_parallel}, case.num_ranks


def _ranks(case: Case, misfit: Phase) -> Iterator[tuple[Settings, int]]:
    """Use more GPUs: replicas share the optimizer state, or stages share the layers."""
    yield {}, 2 * case.num_ranks
    for changed, num_ranks in _layout(case, misfit):
        yield changed, 2 * num_ranks
