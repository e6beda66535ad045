"""Seconds of a run's step: of each operator on its layout, composed along the flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor, log10

from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.timing.cost import Basis, Cost
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.operator_costs import (
    Run,
    device_cost,
    launch_shares,
    operator_cost,
    transfer_seconds,
)
from verl_hpc.planner.timing.operators import Work, operators_of
from verl_hpc.planner.timing.schedule import Flow, Span, classes_of
from verl_hpc.planner.timing.work import forward_flops
from verl_hpc.planner.timing.workload import Workload, workload_of

RESHARD = "reshard"
ASSUMPTIONS: Sequence[str] = (
    "A term is work at the hardware's peak, by the fraction reached, or a number of fixed times.",
    "Replicas and micro-batches have equally many tokens; the slowest stage decides.",
    "Nothing hides tensor-parallel collectives; a backward pass hides the reducing of gradients.",
    "Response lengths are lognormal, cut where generation ends, and independent of each other.",
    "A rollout ends with the longest response of all; its cache is never preempted.",
    "Samples of a prompt share its cache.",
    "Columns that move between placements are megabytes, and take no time.",
    "Saves and evaluations are no part of a step.",
)
"""Assumptions of every prediction, as text."""


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of one step."""

    seconds: float
    operators: Mapping[str, float]
    """Seconds of each operator on its ranks; operators overlap where their ranks are disjoint."""
    costs: Mapping[str, Cost]
    """Cost of each operator, by term."""
    spans: Sequence[Span]
    tokens: float
    """Tokens of prompts and responses."""
    flops: float
    """FLOPs that the models need for those tokens, without recomputation."""
    num_ranks: int
    peak_flops: float
    """Peak of one rank, in FLOPs a second."""
    basis: Basis
    """What the seconds rest on."""
    launch_shares: Mapping[str, float]
    """How long the host takes to dispatch what an operator's passes compute, as a multiple of the
    device's own time; empty on CPU ranks."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def band(self) -> tuple[float, float] | None:
        """Seconds between which nine of ten such steps are; None where nothing tells."""
        return self.basis.band(self.seconds)

    @property
    def text(self) -> str:
        """The seconds with their band."""
        return f"{self.seconds:.1f} s{band_text(self.band)}"

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of one step."""
        return self.num_ranks * self.seconds / 3600

    @property
    def utilisation(self) -> float:
        """Share of all ranks' peak FLOPs that the models' products use."""
        return self.flops / (self.seconds * self.num_ranks * self.peak_flops)


def band_text(band: tuple[float, float] | None, per_second: float = 1.0) -> str:
    """A band in parentheses, with two digits or more; empty without one.

    Args:
        band: in seconds.
        per_second: what a second is in the unit that is shown.
    """
    if band is None:
        return ""
    low, high = (per_second * end for end in band)
    digits = max(0, 1 - floor(log10(low)))
    return f" ({low:,.{digits}f} to {high:,.{digits}f})"


def predict_step(
    config: RunConfig,
    archs: Mapping[str, Architecture] | Architecture,
    layouts: RunLayouts,
    machine: Machine,
    *,
    work: Workload | None = None,
    plans_transfer: bool = False,
) -> StepTime:
    """Predict how long a step takes.

    Args:
        config: of the run.
        archs: of every role's model by its name, or one for all.
        layouts: of the run.
        machine: what it runs on.
        work: None takes `workload_of(config)`.
        plans_transfer: make the transfer's own plan, which takes seconds for many ranks; else
            estimate its time from bytes.

    Raises:
        LayoutError: sizes that do not divide.
    """
    work, flow = work or workload_of(config), Flow(config)
    if isinstance(archs, Architecture):
        archs = dict.fromkeys(config.role_settings, archs)
    # Cost of each operator on its own ranks, in terms that the machine turns into seconds.
    run = Run(config, archs, layouts, machine, work, plans_transfer)
    costs = {one.name: operator_cost(run, one) for one in flow.works}
    seconds = {name: machine.seconds(cost) for name, cost in costs.items()}
    if config.generates and config.samples_to_train:
        transfer, costs[RESHARD] = transfer_seconds(run), device_cost(run)
        seconds[RESHARD] = transfer + machine.seconds(costs[RESHARD])
    # Operators on disjoint ranks overlap, as the flow allows.
    spans = spans_of(config, layouts, seconds)
    return StepTime(
        max(span.stop for span in spans),
        seconds,
        costs,
        spans,
        work.tokens,
        step_flops(config, archs, work),
        layouts.num_ranks,
        machine.peak(config.model.dtype),
        machine.efficiency.basis.of_run(config.rollout.staleness, archs.values()),
        launch_shares(run, flow.works) if machine.hardware.kind.is_gpu else {},
    )


def spans_of(config: RunConfig, layouts: RunLayouts, seconds: Mapping[str, float]) -> list[Span]:
    """Span of each operator, which takes so many seconds.

    With rollout.staleness the next step is generated while this one trains, except for the refit,
    which both wait for.
    """
    flow = Flow(config)
    pools = classes_of({name: pool.ranks for name, pool in layouts.pools.items()})
    trained = {name for name, role in config.role_settings.items() if role.trainable}
    placed = flow.on(
        {name: pools[pool] for name, pool in layouts.pool_of.items()},
        {number for name in trained for number in pools[layouts.pool_of[name]]},
    )
    refit = seconds.get(RESHARD, 0.0)
    durations = [seconds[work.name] for work in flow.works]
    ends = placed.ends(durations, refit)
    spans = [Span(RESHARD, "all", 0.0, refit)] if refit else []
    for i in chain(*placed.parts):
        work = flow.works[i]
        spans.append(Span(work.name, layouts.pool_of[work.role], ends[i] - durations[i], ends[i]))
    return spans


def step_flops(config: RunConfig, archs: Mapping[str, Architecture], work: Workload) -> float:
    """FLOPs that the models of a step need, without recomputation: one forward pass to generate or
    to infer, and three for each epoch of an update.

    Args:
        config: of the run.
        archs: of every role.
        work: of a step.
    """
    return sum(_flops(config, archs, work, one) for one in operators_of(config))


def _flops(
    config: RunConfig, archs: Mapping[str, Architecture], work: Workload, one: Work
) -> float:
    if one.kind not in ("generate", "infer", "update"):
        return 0.0
    work = work.greedily() if one.greedy else work
    role = next(iter(config.role_settings)) if one.kind == "generate" else one.role
    passes = 3.0 * work.update_epochs if one.kind == "update" else 1.0
    logits = config.role_settings[role].head == "language_model"
    squares = work.sequences * work.square
    return passes * forward_flops(archs[role], work.tokens, squares, logits)
