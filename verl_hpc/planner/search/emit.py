"""The result of a search, and the settings of a run that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_hpc.config.role import ACTOR
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.generation import zero_redundancy_applies
from verl_hpc.placement.layouts import ROLLOUT
from verl_hpc.planner.search.pareto_front import Option
from verl_hpc.planner.search.placements import Partition


@dataclass(frozen=True)
class Candidate:
    """The best layouts of one placement."""

    sets: Partition
    """Roles that share ranks; a reference that computes in another role's engine is with it."""
    sizes: tuple[int, ...]
    """Ranks of each set."""
    options: Mapping[str, Option]
    """Layout of each role that has an engine, and of ROLLOUT where it has its own ranks."""
    seconds: float
    """Seconds of a step."""
    operators: Mapping[str, float]
    """Seconds of each operator, `reshard` included."""

    @property
    def num_ranks(self) -> int:
        return sum(self.sizes)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of a step."""
        return self.num_ranks * self.seconds / 3600

    @property
    def rollout_tp(self) -> int | None:
        return next((o.rollout_tp for o in self.options.values() if o.rollout_tp), None)


def overrides_of(config: RunConfig, candidate: Candidate) -> dict[str, Any]:
    """The settings that a candidate changes, by dotted name; sections are whole.

    A step on 64 + 64 ranks gives, among others, placement: {actor: 0-63, critic: 64-127},
    parallel: {tensor_parallel: 8, sequence_parallel: true} and roles.reference.placement: actor.
    """
    labels = _labels(candidate)
    overrides: dict[str, Any] = {"placement": labels}
    for name, settings in config.role_settings.items():
        option = candidate.options.get(name)
        if name == ACTOR:
            assert option is not None and option.cut is not None
            overrides["parallel"] = option.cut.settings(config.parallel)
        # A role is placed by the label of its set, which is the set's first role.
        label = next(roles[0] for roles in candidate.sets if name in roles)
        changes: dict[str, Any] = {"parallel": None, "placement": None}
        if option is not None and option.cut is not None and name != ACTOR:
            changes["parallel"] = option.cut.settings(settings.parallel)
        if option is not None and labels and label != name:
            changes["placement"] = label
        # None is written only over a setting that the configuration gives.
        given = config.roles.get(name)
        for field, value in changes.items():
            if value is not None or (given is not None and getattr(given, field) is not None):
                overrides[f"roles.{name}.{field}"] = value
    if candidate.rollout_tp is not None:
        overrides["rollout.tensor_parallel"] = candidate.rollout_tp
        if config.rollout.grouping == "zero_redundancy" and not _groups_apply(candidate):
            overrides["rollout.grouping"] = None
    return overrides


def _labels(candidate: Candidate) -> dict[str, str]:
    if len(candidate.sets) == 1:
        return {}
    labels, first = {}, 0
    for roles, size in zip(candidate.sets, candidate.sizes, strict=True):
        labels[roles[0]] = f"{first}-{first + size - 1}" if size > 1 else str(first)
        first += size
    return labels


def _groups_apply(candidate: Candidate) -> bool:
    if ROLLOUT in candidate.options or candidate.rollout_tp is None:
        return False
    cut = next(iter(candidate.options.values())).cut
    return cut is not None and zero_redundancy_applies(cut.layout.tp, candidate.rollout_tp)


def applied(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration with the settings of a candidate.

    Raises:
        pydantic.ValidationError: they do not go with the others.
    """
    tree = config.model_dump(exclude_unset=True)
    for name, value in overrides.items():
        *path, field = name.split(".")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[field] = value
    return RunConfig.model_validate(tree)


def separated(config: RunConfig) -> dict[str, RoleSettings]:
    """Settings of every role as if each had its own engine, except where roles must share one."""
    shares = {name for name, one in config.role_settings.items() if one.shares is not None}
    apart = shares - must_share(config).keys()
    return applied(config, {f"roles.{name}.parallel": {} for name in sorted(apart)}).role_settings


def must_share(config: RunConfig) -> dict[str, str]:
    """Map each role that must compute in another's engine, as it starts from its adapter, to that
    role."""
    settings = config.role_settings
    owners = {name: one.shares for name, one in settings.items() if one.shares is not None}
    adapters = {name: settings[owner].lora for name, owner in owners.items()}
    return {
        n: o for n, o in owners.items() if (a := adapters[n]) is not None and a.path is not None
    }
