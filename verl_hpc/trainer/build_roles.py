"""Build the engines of roles and of the rollout, and load their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist

from verl_hpc.config.roles import RoleSettings
from verl_hpc.engines.factory import build_engine, engine_shard_map
from verl_hpc.engines.protocol import TrainingEngine
from verl_hpc.generation.kept import KeptResponses, rollout_key
from verl_hpc.generation.prompt_queue import PromptQueue
from verl_hpc.generation.rollout import Rollout
from verl_hpc.layout.adapters import trained_map
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.live import check_parameters
from verl_hpc.placement.layouts import ROLLOUT
from verl_hpc.rollout.factory import build_rollout, invariant_attention, rollout_shard_map
from verl_hpc.step.role import InitialWeights, Role
from verl_hpc.trainer.adapters import fill_adapters
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.fill import fill
from verl_hpc.trainer.sync import WeightSync, device_to_itself, offloads_of


def add_rollout(run: RunContext) -> None:
    """Add the rollout role, without an engine; every rank calls it."""
    config, replicas, control = run.config, run.layouts.replicas, run.session.control
    place = run.place(ROLLOUT)
    shard_map = rollout_shard_map(config.rollout, run.arch, replicas, config.rollout_dtype)
    replica = control.split(place.index if place.is_here else len(replicas))
    run.rollout = Rollout(place, shard_map, None, replica_control=replica)
    if config.rollout.balance == "stealing":
        number = _count("verl_hpc/prompt_queues") if control.rank == 0 else None
        name = f"verl_hpc/prompts/{control.broadcast(number)}"
        run.rollout.queue = PromptQueue(name, _count, replica)
    if config.rollout.on_interrupt == "keep":
        run.rollout.kept = KeptResponses(rollout_key(config))


def _count(name: str) -> int:
    """Increment a counter in the job's store and return its previous value; unlike MPI's counters
    the store answers while its rank computes."""
    return int(dist.distributed_c10d._get_default_store().add(name, 1)) - 1


def build_engines(run: RunContext, enter: Callable[[str], object], resumes: bool) -> None:
    """Build the engines with their weights, except for roles that share another's; then the
    rollout's."""
    shared = {role.settings.shares for role in run.roles.values()}
    for name, role in run.roles.items():
        if role.settings.shares:
            continue
        enter(f"build {name}")
        base = run.roles[run.layouts.bases[name]] if name in run.layouts.bases else None
        role.training = run.session.control.together(partial(_engine, run, role, base))
        lora = role.settings.lora
        if lora is not None or not (resumes and role.settings.trainable and name not in shared):
            _load_weights(run, role, base)
        if lora is not None:
            fill_adapters(run.session, role, run.config.seed)
    if run.rollout is not None:
        enter(f"build rollout ({run.config.rollout.engine})")
        build_rollout_engine(run, run.rollout)
    _share_engines(run.roles)


def make_role(run: RunContext, settings: RoleSettings) -> Role:
    """Make a role, without an engine."""
    weights, layout = run.weights[settings.name], run.layouts.train[settings.name]
    arch, head = weights.arch, settings.head
    shard_map = engine_shard_map(
        arch,
        layout,
        settings.model,
        head,
        engine=settings.parallel.engine,
        trainable=settings.trainable,
        lora=settings.lora,
    )
    sharded_by = layout if settings.parallel.engine == "fsdp" else None
    trained = trained_map(arch, shard_map, head, settings.lora, sharded_by)
    # What is trained here learns to score the last token.
    pad = None if settings.trainable else weights.pad_token
    place = run.place(settings.name)
    return Role(settings.name, settings, place, arch, layout, shard_map, trained, pad_token=pad)


def _engine(run: RunContext, role: Role, base: Role | None) -> TrainingEngine | None:
    """Build a role's engine with zero weights, except those shared with `base`; None on ranks
    outside the role's placement."""
    settings = role.settings
    if not role.place.is_here:
        return None
    return build_engine(
        role.arch,
        role.layout,
        settings.model,
        settings.parallel,
        head=settings.head,
        optimizer=settings.optimizer,
        max_tokens=run.config.batch.max_tokens_per_micro_batch,
        name=role.name,
        lora=settings.lora,
        base=base.training if base is not None else None,
        attend=invariant_attention() if _is_exact(run, role) else None,
    )


def _is_exact(run: RunContext, role: Role) -> bool:
    """Whether a role computes by kernels that do not depend on the batch: policies of the actor's
    model do."""
    given = run.config.rollout.batch_invariant and role.settings.head == "language_model"
    return given and role.arch == run.arch and role.settings.parallel.engine == "megatron"


def _load_weights(run: RunContext, role: Role, base: Role | None) -> None:
    """Load from files all weights not shared with `base`; every rank takes part."""
    weights = run.weights[role.name]
    # A new value head has no source to come from; it starts at zero.
    there = weights.shard_map.tensors
    new = HEAD_TENSORS.get(role.settings.head)
    names = [n for n in role.shard_map.tensors if n in there or n != new]
    if base is not None:
        names = [n for n in names if n in role.trained_map.tensors or n not in base.frozen]
    engine, target = role.training, role.shard_map.restricted_to(names)
    held = engine.weights if engine else {}
    fill(run.session, weights.shard_map, weights.reader, target, held)
    if engine is not None:
        engine.weights_changed()


def build_rollout_engine(run: RunContext, rollout: Rollout) -> None:
    session, config = run.session, run.config
    offloads = offloads_of(run.roles.values()) if rollout.place.is_here else ()
    longest = {"max_response_tokens": config.longest_response}
    with device_to_itself(offloads):
        engine = session.control.together(
            lambda: build_rollout(
                session.world,
                run.arch,
                str(run.weights["actor"].hf_directory),
                run.tokenizer_path,
                run.layouts.replicas,
                config.rollout.model_copy(update=longest),
                config.rollout_dtype,
                keeps_experts=config.replays_experts,
                constraints=config.constraints,
            )
        )
        # The engine must have exactly the parameters that transfers will fill.
        name = f"rollout.engine = {config.rollout.engine}"
        if run.arch.is_mapped:
            weights = engine.weights if engine is not None else {}
            check = partial(check_parameters, rollout.shard_map, session.world.rank, weights, name)
            session.control.together(check)
        if engine is not None:
            engine.sleep()
    rollout.engine = engine
    run.sync = WeightSync(
        session,
        run.roles["actor"],
        rollout,
        offloads,
        getattr(torch, config.rollout_dtype),
        config.rollout.verify.checksums,
    )


def _share_engines(roles: Mapping[str, Role]) -> None:
    """Let roles that share another's engine compute with its current weights, as the first
    weights."""
    for role in roles.values():
        owner = roles[role.settings.shares].training if role.settings.shares else None
        if owner is None:
            continue
        lora = roles[role.settings.shares or ""].settings.lora
        role.shared = InitialWeights(owner, in_adapters=lora is not None and lora.path is None)
