"""Seconds of a run's step: of each operator on its layout, composed along the compiled flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from verl_hpc.config.model import OffloadConfig
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.flow import Pipeline
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.layouts import RunLayouts
from verl_hpc.planner.timing.cost import Cost, times, together
from verl_hpc.planner.timing.generation import Engines, generate_cost
from verl_hpc.planner.timing.machine import Machine, element_size
from verl_hpc.planner.timing.operators import Work, compiled, operators_of
from verl_hpc.planner.timing.passes import Model, infer_cost, parameters_per_rank, update_cost
from verl_hpc.planner.timing.refit import estimated_seconds, offloaded_bytes, planned_seconds
from verl_hpc.planner.timing.schedule import Span, spans_of
from verl_hpc.planner.timing.work import forward_flops
from verl_hpc.planner.timing.workload import Workload, workload_of

RESHARD = "reshard"
CONTEXT_BYTES = 3 * 2**30
"""What an engine's share of the device holds beside weights and cache: activations of the largest
step, CUDA graphs and workspaces."""

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
"""Of every prediction, for people to read."""


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of one step."""

    seconds: float
    operators: Mapping[str, float]
    """Seconds of each, on its ranks; they overlap where their ranks are disjoint."""
    costs: Mapping[str, Cost]
    """What they consist of."""
    spans: Sequence[Span]
    tokens: float
    """Of prompts and responses."""
    flops: float
    """That the models need for them, without what is recomputed."""
    num_ranks: int
    peak_flops: float
    """Of one rank."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def gpu_hours(self) -> float:
        """Of one step."""
        return self.num_ranks * self.seconds / 3600

    @property
    def utilisation(self) -> float:
        """Share of all ranks' peak that the models' products are."""
        return self.flops / (self.seconds * self.num_ranks * self.peak_flops)


@dataclass(frozen=True)
class Run:
    """A run on its layouts, of which operators are predicted."""

    config: RunConfig
    arch: Architecture
    """Of the first role's model."""
    layouts: RunLayouts
    machine: Machine
    work: Workload
    archs: Mapping[str, Architecture]
    """Of roles that have a model of their own."""
    cache_bytes: float | None = None
    """Of a rollout rank; None takes what the configuration gives it."""
    plans_transfer: bool = False
    """Make the transfer's own plan; else estimate its seconds from bytes."""

    def arch_of(self, role: str) -> Architecture:
        return self.archs.get(role, self.arch)


def predict_step(
    config: RunConfig,
    arch: Architecture,
    layouts: RunLayouts,
    machine: Machine,
    *,
    archs: Mapping[str, Architecture] | None = None,
    work: Workload | None = None,
    cache_bytes: float | None = None,
    plans_transfer: bool = False,
) -> StepTime:
    """How long a step takes.

    Args:
        config: of the run.
        arch: of the first role's model.
        layouts: of the run.
        machine: what it runs on.
        archs: of roles that have a model of their own.
        work: None takes `workload_of(config)`.
        cache_bytes: that a rollout rank has for keys and values; None takes what the configuration
            leaves on the machine.
        plans_transfer: make the transfer's own plan, which takes seconds for many ranks; else
            estimate its time from bytes.

    Raises:
        LayoutError: sizes that do not divide.
    """
    work = work or workload_of(config)
    run = Run(config, arch, layouts, machine, work, archs or {}, cache_bytes, plans_transfer)
    pipeline = compiled(config, layouts)
    works = {work.name: work for work in operators_of(config)}
    costs = {name: operator_cost(run, one) for name, one in works.items()}
    seconds = {name: machine.seconds(cost) for name, cost in costs.items()}
    if config.generates and config.samples_to_train:
        transfer, costs[RESHARD] = transfer_seconds(run), device_cost(run)
        seconds[RESHARD] = transfer + machine.seconds(costs[RESHARD])
    spans, total = _composed(run, pipeline, seconds)
    return StepTime(
        total,
        seconds,
        costs,
        spans,
        run.work.tokens,
        sum(_flops(run, one) for one in works.values()),
        layouts.num_ranks,
        machine.peak(config.model.dtype),
    )


def operator_cost(run: Run, one: Work) -> Cost:
    """Of one operator on its ranks."""
    work = run.work
    if one.greedy:
        work = work.greedily()
    host: Cost = {"operators": 1.0}
    if one.kind == "host":
        return host
    if one.kind == "score":
        num_ranks = len(run.layouts.pools[run.layouts.pool_of[one.role]].ranks)
        return together([host, {"scores": work.sequences / num_ranks}])
    if one.kind == "generate":
        return together([host, generate_cost(run.machine, engines_of(run), work)])
    model = model_of(run, one.role)
    if one.kind == "update":
        return together([host, update_cost(run.machine, model, work)])
    return together([host, infer_cost(run.machine, model, work), _swap(run, one.role, model)])


def model_of(run: Run, role: str) -> Model:
    """Of a role on its layout."""
    return role_model(run.config.role_settings[role], run.arch_of(role), run.layouts.train[role])


def role_model(settings: RoleSettings, arch: Architecture, layout: TrainLayout) -> Model:
    """Of a role with everything decided."""
    return Model(
        replace(arch, rope_scaling=None),
        replace(layout, first_rank=0),
        # A value and a score cost the same.
        settings.head if settings.head == "language_model" else "value",
        settings.model.dtype,
        settings.model.fp8 is not None,
        settings.parallel.recompute,
    )


def _swap(run: Run, role: str, model: Model) -> Cost:
    """A reference in another role's engine: its weights come from the host, and the owner's come
    back."""
    settings = run.config.role_settings[role]
    if settings.shares is None or not run.machine.hardware.kind.is_gpu:
        return {}
    return run.machine.pcie(2 * element_size(model.dtype) * parameters_per_rank(model))


def engines_of(run: Run) -> Engines:
    """The rollout engines of a run."""
    return engines(
        run.config,
        run.arch,
        run.machine,
        sum(map(len, run.layouts.replicas)),
        run.config.rollout.tensor_parallel,
        run.cache_bytes,
    )


def engines(
    config: RunConfig,
    arch: Architecture,
    machine: Machine,
    num_ranks: int,
    tp: int,
    cache_bytes: float | None = None,
) -> Engines:
    """Rollout engines of a configuration on so many ranks."""
    rollout = config.rollout
    found = Engines(
        arch,
        num_ranks,
        tp,
        rollout.pipeline_parallel,
        rollout_dtype(config),
        None,
        rollout.max_num_seqs or (256 if rollout.engine == "hf" else None),
    )
    if cache_bytes is None and rollout.kv_cache_gib is not None:
        cache_bytes = rollout.kv_cache_gib * 2**30
    device = machine.hardware.device_bytes if machine.hardware.kind.is_gpu else None
    if cache_bytes is None and device is not None:
        share = rollout.gpu_memory_utilization * device
        cache_bytes = max(share - found.weight_bytes - CONTEXT_BYTES, 0.0)
    return replace(found, cache_bytes=cache_bytes)


def rollout_dtype(config: RunConfig) -> str:
    """Element type of the engines' weights, which is what travels."""
    return config.rollout.dtype or config.model.dtype


def transfer_seconds(run: Run) -> float:
    """Of the weights, from the actor to the rollout engines."""
    layouts, hardware = run.layouts, run.machine.hardware
    first = next(iter(layouts.train))
    train = layouts.train[first]
    checksums, dtype = run.config.rollout.verify.checksums, rollout_dtype(run.config)
    if not run.plans_transfer:
        generates = {rank for group in layouts.replicas for rank in group}
        return estimated_seconds(
            run.arch,
            train,
            run.config.rollout.tensor_parallel,
            hardware,
            dtype,
            shared=not generates.isdisjoint(train.grid.ranks()),
            checksums=checksums,
        )
    return planned_seconds(
        train,
        layouts.replicas,
        replace(run.arch, rope_scaling=None),  # it cannot be hashed
        layouts.num_ranks,
        hardware.ranks_per_node,
        hardware.links,
        checksums,
        dtype,
    )


def device_cost(run: Run) -> Cost:
    """What gives the rollout engines the device, and the training engines theirs back: of the rank
    that both compute on, and that has most to bring."""
    generates = set(run.layouts.pools[run.layouts.pool_of["rollout"]].ranks)
    settings = run.config.role_settings
    brings = [
        offload_cost(run.machine, one, model_of(run, name))
        for name, one in settings.items()
        if one.shares is None and generates.intersection(run.layouts.train[name].grid.ranks())
    ]
    switch: Cost = {"switches": 1.0} if brings and run.machine.hardware.kind.is_gpu else {}
    return together([*brings, switch])


def offload_cost(machine: Machine, settings: RoleSettings, model: Model) -> Cost:
    """What a role brings to the host and back in a step."""
    parts = [part for part in _PARTS if getattr(settings.offload, part)]
    if not settings.trainable:
        parts = [part for part in parts if part == "parameters"]
    if not machine.hardware.kind.is_gpu:
        return {}
    parameters = parameters_per_rank(model)
    num_bytes = offloaded_bytes(parameters, model.layout.dp, model.dtype, parts)
    # Weights that nobody trains are on the host already: they only come back.
    return times(2 if settings.trainable else 1, machine.pcie(num_bytes))


_PARTS = tuple(OffloadConfig.model_fields)


def _composed(
    run: Run, pipeline: Pipeline, seconds: Mapping[str, float]
) -> tuple[list[Span], float]:
    """With rollout.staleness the next step is made while this one trains, but for the refit,
    which both wait for."""
    refit = seconds.get(RESHARD, 0.0)
    everyone = Span(RESHARD, "all", 0.0, refit)
    first = [everyone] if refit else []
    if not run.config.rollout.staleness:
        spans, end = spans_of(pipeline, seconds, refit)
        return [*first, *spans], end
    ahead, rest = pipeline.split(_ahead(run, pipeline))
    made, made_end = spans_of(ahead, seconds, refit)
    trained, trained_end = spans_of(rest, seconds, refit)
    return [*first, *made, *trained], max(made_end, trained_end)


def _ahead(run: Run, pipeline: Pipeline) -> set[str]:
    """Operators that need no rank that trains (`trainer.steps.Steps`)."""
    settings, layouts = run.config.role_settings, run.layouts
    busy = {
        rank
        for name, one in settings.items()
        if one.trainable
        for rank in layouts.train[name].grid.ranks()
    }
    made, names = {"rows"}, set()
    for item in pipeline.runs:
        ranks = layouts.pools[item.operator.placement].ranks
        ahead = not item.operator.changes_state and busy.isdisjoint(ranks)
        if ahead and made.issuperset(pipeline.needs(item)):
            made.update(item.operator.gives)
            names.add(item.name)
    return names


def _flops(run: Run, one: Work) -> float:
    work = run.work
    arch = run.arch if one.kind == "generate" else run.arch_of(one.role)
    if one.kind == "generate":
        mean, squares = work.sequence, work.square
        return forward_flops(arch, work.sequences * mean, work.sequences * squares)
    if one.kind not in ("infer", "update"):
        return 0.0
    logits = run.config.role_settings[one.role].head == "language_model"
    squares = work.sequences * work.square
    passes = 3.0 * work.update_epochs if one.kind == "update" else 1.0
    return passes * forward_flops(arch, work.tokens, squares, logits)
