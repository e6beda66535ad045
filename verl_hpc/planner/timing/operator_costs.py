"""Costs of a run's operators on its layouts, and of what happens between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from verl_hpc.config.model import OffloadConfig
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.link_model import predicted_seconds
from verl_hpc.layout.quantization import mean_item_bytes
from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.refit_plan import refit_plans
from verl_hpc.planner.shape import RoleShape
from verl_hpc.planner.timing.cost import Cost, times, together
from verl_hpc.planner.timing.generation import Engines, generate_cost
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.operators import Work
from verl_hpc.planner.timing.passes import (
    infer_cost,
    launch_share,
    parameters_per_rank,
    update_cost,
)
from verl_hpc.planner.timing.refit import Refit, estimated_seconds
from verl_hpc.planner.timing.workload import Workload

CONTEXT_BYTES = 3 * 2**30
"""Memory in an engine's share of the device that is neither weights nor cache: activations of the
largest step, CUDA graphs and workspaces."""


@dataclass(frozen=True)
class Run:
    """A run on its layouts, for the prediction of its operators."""

    config: RunConfig
    archs: Mapping[str, Architecture]
    """Architecture of each role's model."""
    layouts: RunLayouts
    machine: Machine
    work: Workload
    plans_transfer: bool
    """Make the transfer's own plan; otherwise estimate its seconds from bytes."""

    @property
    def arch(self) -> Architecture:
        """Architecture of the first role's model, which generates."""
        return self.archs[next(iter(self.config.role_settings))]


def operator_cost(run: Run, one: Work) -> Cost:
    """Cost of one operator on its ranks."""
    host: Cost = {"operators": 1.0}
    if one.kind == "host":
        return host
    if one.kind in ("generate", "score"):
        num_ranks = len(run.layouts.pools[run.layouts.pool_of[one.role]].ranks)
        return together(
            [host, serving_cost(run.machine, one, engines_of(run), run.work, num_ranks)]
        )
    model = model_of(run, one.role)
    shares = run.config.role_settings[one.role].shares is not None
    swap = swap_cost(run.machine, model) if shares else {}
    return together([host, pass_cost(run.machine, one, model, run.work), swap])


def pass_cost(machine: Machine, one: Work, model: RoleShape, work: Workload) -> Cost:
    """Cost of an operator that infers or updates."""
    cost = update_cost if one.kind == "update" else infer_cost
    return cost(machine, model, work.greedily() if one.greedy else work)


def launch_shares(run: Run, works: Iterable[Work]) -> dict[str, float]:
    """`passes.launch_share` of each operator that infers or updates."""
    return {
        one.name: launch_share(
            run.machine,
            model_of(run, one.role),
            run.work.greedily() if one.greedy else run.work,
            trains=one.kind == "update",
        )
        for one in works
        if one.kind in ("infer", "update")
    }


def serving_cost(
    machine: Machine, one: Work, deployed: Engines, work: Workload, num_ranks: int
) -> Cost:
    """Cost of an operator that generates, or scores on `num_ranks` ranks; empty for others."""
    work = work.greedily() if one.greedy else work
    if one.kind == "generate":
        return generate_cost(machine, deployed, work)
    return {"scores": work.sequences / num_ranks} if one.kind == "score" else {}


def model_of(run: Run, role: str) -> RoleShape:
    """Model of a role of the run on its layout."""
    settings, on_gpu = run.config.role_settings[role], run.machine.hardware.kind.is_gpu
    return RoleShape.of_role(settings, run.archs[role], run.layouts.train[role], on_gpu)


def swap_cost(machine: Machine, model: RoleShape) -> Cost:
    """Cost of swapping weights for a reference in another role's engine: its weights come from the
    host, and the owner's come back."""
    if not machine.hardware.kind.is_gpu:
        return {}
    return machine.pcie(2 * model.item_bytes * parameters_per_rank(model))


def engines_of(run: Run) -> Engines:
    """The rollout engines of a run."""
    num_ranks = sum(map(len, run.layouts.replicas))
    tp = run.config.rollout.tensor_parallel
    return engines(run.config, run.arch, run.machine, num_ranks, tp)


def engines(
    config: RunConfig, arch: Architecture, machine: Machine, num_ranks: int, tp: int
) -> Engines:
    """Rollout engines of a configuration on so many ranks."""
    rollout = config.rollout
    deployed = Engines(
        arch,
        num_ranks,
        tp,
        rollout.pipeline_parallel,
        config.rollout_dtype,
        None if rollout.kv_cache_gib is None else rollout.kv_cache_gib * 2**30,
        rollout.max_num_seqs or (256 if rollout.engine == "hf" else None),
        mean_item_bytes(arch, rollout.ignored_layers, config.rollout_dtype)
        if rollout.quantization is not None
        else None,
        1 if rollout.kv_cache_dtype == "fp8" else None,
    )
    device = machine.hardware.device_bytes if machine.hardware.kind.is_gpu else None
    if deployed.cache_bytes is not None or device is None:
        return deployed
    # The cache has what weights and work leave of the engine's share.
    share = rollout.gpu_memory_utilization * device
    return replace(deployed, cache_bytes=max(share - deployed.weight_bytes - CONTEXT_BYTES, 0.0))


def transfer_seconds(run: Run) -> float:
    """Seconds of the weight transfer from the actor to the rollout engines."""
    layouts, hardware = run.layouts, run.machine.hardware
    checksums = run.config.rollout.verify.checksums
    if not run.plans_transfer or not hardware.kind.is_gpu:
        return estimated_seconds(_refit(run), hardware, checksums)
    plan = refit_plans(run.config, run.arch, layouts, hardware)[-1]
    nodes = nodes_of(layouts.num_ranks, hardware.ranks_per_node)
    return predicted_seconds(plan, nodes, hardware.links, checksums)


def _refit(run: Run) -> Refit:
    first = next(iter(run.layouts.train.values()))
    generates = {rank for group in run.layouts.replicas for rank in group}
    shared = not generates.isdisjoint(first.grid.ranks())
    return Refit.of(run.config, run.arch, first, run.config.rollout.tensor_parallel, shared)


def device_cost(run: Run) -> Cost:
    """Cost of handing the device to the rollout engines and back to the training engines: on GPUs
    the sum of the offloads of all roles on the generating ranks, on CPU ranks the copies of the
    transfer."""
    if not run.machine.hardware.kind.is_gpu:
        return filled_cost(run.machine, run.config, _refit(run))
    generates = set(run.layouts.pools[run.layouts.pool_of["rollout"]].ranks)
    settings = run.config.role_settings
    brings = [
        offload_cost(run.machine, one, model_of(run, name))
        for name, one in settings.items()
        if one.shares is None and generates.intersection(run.layouts.train[name].grid.ranks())
    ]
    switch: Cost = {"switches": 1.0} if brings else {}
    return together([*brings, switch, merging_cost(run.machine, _refit(run))])


def merging_cost(machine: Machine, refit: Refit) -> Cost:
    """Cost of merging adapters where they arrive: weights come from host memory, and are read and
    written in their own type and in float32."""
    if refit.adapters is None:
        return {}
    own, single = ITEM_BYTES[refit.dtype], ITEM_BYTES["float32"]
    passes = 2 if own == single else (2 * own + 3 * single) / own
    copies = machine.memory(passes * refit.needed_bytes)
    return together(
        [machine.pcie(refit.needed_bytes), copies] if machine.hardware.kind.is_gpu else [copies]
    )


def filled_cost(machine: Machine, config: RunConfig, refit: Refit) -> Cost:
    """Cost of filling an engine's weights on CPUs: what a rank lacks is sent, everything is copied,
    and then packed for products (`rollout.vllm_cpu.pack_linears`)."""
    packs = config.rollout.engine == "vllm"
    # The bucket, the weights and the packed weights are each read and written.
    num_bytes = 4 * refit.received_bytes + (4 if packs else 2) * refit.needed_bytes
    filled = machine.memory(num_bytes)
    return together([{"switches": 1.0}, filled, merging_cost(machine, refit)])


def offload_cost(machine: Machine, settings: RoleSettings, model: RoleShape) -> Cost:
    """Cost of offloading a role to the host and back in a step."""
    parts = [part for part in _PARTS if getattr(settings.offload, part)]
    if not settings.trainable:
        parts = [part for part in parts if part == "parameters"]
    if not machine.hardware.kind.is_gpu:
        return {}
    parameters = parameters_per_rank(model)
    num_bytes = 0.0  # gradients come back as zeros
    if "parameters" in parts:
        num_bytes += model.item_bytes * parameters
    if "optimizer" in parts:  # of the rank's shard: float32 master weights and two moments
        num_bytes += (4 + model.moments_bytes) * parameters / model.layout.dp
    # Frozen weights are on the host already: they only come back.
    return times(2 if settings.trainable else 1, machine.pcie(num_bytes))


_PARTS = tuple(OffloadConfig.model_fields)
