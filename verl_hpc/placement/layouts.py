"""A run's layouts on its ranks: which ranks train each role, generate, and share samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.role import REWARD
from verl_hpc.config.roles import TRAIN, RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import (
    Grouping,
    generation_groups,
    layers_per_rollout_stage,
    zero_redundancy_applies,
)
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.rollout import check_by_name
from verl_hpc.layout.vllm import check_vllm_layout
from verl_hpc.placement.bases import shared_bases
from verl_hpc.placement.model_checks import (
    check_fp8,
    check_lengths,
    check_quantization,
    check_role,
    check_router,
    check_router_replay,
    check_vocabulary,
    parallel_setting,
)
from verl_hpc.placement.placements import place_ranks

ROLLOUT = "rollout"
"""Label and pool of the ranks that generate."""
SCORING = "scoring"
"""Key of the pool that calls the reward function."""

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Pool:
    """Ranks that run operators together. The ranks of a group have the same samples, different
    groups different ones.

    Two replicas of TP2 on ranks 0-3 are the groups (0, 1) (2, 3).
    """

    name: str
    groups: Groups

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for group in self.groups for rank in group))


@dataclass(frozen=True)
class RunLayouts:
    """Ranks and layouts on which a run trains and generates."""

    num_ranks: int
    train: Mapping[str, TrainLayout]
    """Training layout of each role."""
    replicas: Groups
    """Ranks of every rollout engine."""
    grouping: Grouping
    pools: Mapping[str, Pool]
    """Pools by name."""
    pool_of: Mapping[str, str]
    """The pool of each role, of ROLLOUT and of SCORING."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """For each role with adapters that shares frozen weights, the role that holds them."""

    @property
    def num_replicas(self) -> int:
        return len(self.replicas)

    @cached_property
    def is_split(self) -> bool:
        """Whether some pool lacks some of the ranks."""
        return any(len(pool.ranks) < self.num_ranks for pool in self.pools.values())


def placement_of(layouts: RunLayouts) -> dict[str, str]:
    """Ranks of each role and of the rollout, as a configuration writes them: `0-63`."""
    names = [*layouts.train, *([ROLLOUT] if layouts.replicas else [])]
    texts = {}
    for name in names:
        ranks = layouts.pools[layouts.pool_of[name]].ranks
        texts[name] = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
    return texts


def layouts_of(layouts: RunLayouts) -> dict[str, dict[str, int]]:
    """Sizes of every role's layout, and of the rollout engines."""
    sizes = {name: _sizes(layout) for name, layout in layouts.train.items()}
    if layouts.replicas:
        sizes[ROLLOUT] = {"ranks": len(layouts.replicas[0]), "engines": layouts.num_replicas}
    return sizes


def _sizes(layout: TrainLayout) -> dict[str, int]:
    sizes = {"tp": layout.tp, "pp": layout.pp, "dp": layout.num_replicas}
    more = ("cp", "vpp", "ep", "etp")
    sizes |= {name: n for name in more if (n := getattr(layout, name)) > 1}
    return sizes | ({"shard_size": layout.shard_size} if layout.shard_size is not None else {})


def run_layouts(
    config: RunConfig,
    arch: Architecture,
    num_ranks: int,
    *,
    archs: Mapping[str, Architecture] | None = None,
    ranks_per_node: int | None = None,
) -> RunLayouts:
    """Lay a run out on `num_ranks` ranks.

    Args:
        config: of the run.
        arch: of the first role's model, which is the actor's if there is one.
        num_ranks: of the job.
        archs: of roles that have a model of their own.
        ranks_per_node: needed where a placement names nodes.

    Raises:
        ConfigError: the ranks do not match the sizes, or a model cannot be cut that way.
    """
    layouts = place_roles(config, num_ranks, ranks_per_node)
    check_vocabulary(config, arch.vocab_size)
    settings = config.role_settings
    for name, layout in layouts.train.items():
        own = (archs or {}).get(name, arch)
        check_role(settings[name], own, layout)
        check_lengths(config, name, own)
        if own.vocab_size != arch.vocab_size:
            raise ConfigError(
                f"roles.{name}: its vocabulary has {own.vocab_size} tokens, with padding, and "
                f"model.path's {arch.vocab_size}; all roles read the same token ids, so choose a "
                "model with the same tokenizer, padded alike"
            )
    check_router(config, [(archs or {}).get(name, arch) for name in layouts.train])
    check_router_replay(config, arch)
    rollout = config.rollout
    if not arch.is_mapped:
        check_by_name(rollout, arch)
    check_quantization(config, arch)
    try:
        check_vllm_layout(arch, rollout.tensor_parallel, rollout.expert_parallel)
        layers_per_rollout_stage(arch.num_layers, rollout.pipeline_parallel)
    except LayoutError as error:
        raise ConfigError(f"rollout: {error}") from None
    return layouts


def place_roles(config: RunConfig, num_ranks: int, ranks_per_node: int | None = None) -> RunLayouts:
    """Lay a run out as `run_layouts` does, without the checks that need the models.

    Raises:
        ConfigError: as `run_layouts`.
    """
    labels = place_ranks(config.placement, num_ranks, ranks_per_node)
    settings = config.role_settings
    everyone = range(num_ranks)

    def ranks_of(label: str, where: str) -> range:
        if label not in labels and label != TRAIN:
            raise ConfigError(
                f"{where}.placement = {label}: no such label; "
                f"{near_or_all(label, labels, 'placement')}"
            )
        return labels.get(label, everyone)

    train = {
        name: _train_layout(role, ranks_of(role.label, f"roles.{name}"), labels)
        for name, role in settings.items()
    }
    check_fp8(settings, train)
    first = next(iter(train))
    rollout_ranks = labels.get(ROLLOUT, ranks_of(settings[first].label, f"roles.{first}"))
    replicas, grouping = _replicas(config, train[first], rollout_ranks)
    # Roles whose layouts group the ranks alike share a pool, so that samples stay where they are.
    pools: dict[str, Pool] = {}
    pool_of = {
        name: _pool(pools, settings[name].label, name, layout) for name, layout in train.items()
    }
    pools[ROLLOUT] = Pool(ROLLOUT, replicas)
    pool_of[ROLLOUT] = pool_of[SCORING] = ROLLOUT
    used = {role.label for role in settings.values()} | {ROLLOUT}
    if REWARD not in settings and REWARD in labels:
        used.add(REWARD)
        pools[REWARD] = Pool(REWARD, tuple((rank,) for rank in labels[REWARD]))
        pool_of[SCORING] = REWARD
    # Refuse what would deadlock, idle or be ignored before any rank starts.
    _check_labels(config, labels, used)
    _check_ranks(pools.values(), num_ranks)
    _check_staleness(config, train, replicas)
    _check_profile(config, num_ranks)
    bases = shared_bases(settings, train)
    return RunLayouts(num_ranks, train, replicas, grouping, pools, pool_of, bases)


def _check_profile(config: RunConfig, num_ranks: int) -> None:
    profile = config.runtime.profile
    beyond = [r for r in profile.ranks if r >= num_ranks] if profile is not None else []
    if beyond:
        raise ConfigError(
            f"runtime.profile.ranks: has {beyond[0]}, and the {num_ranks} ranks of the job are "
            f"0 to {num_ranks - 1}"
        )


def _check_staleness(config: RunConfig, train: Mapping[str, TrainLayout], replicas: Groups) -> None:
    if not config.rollout.staleness or not config.generates:
        return
    generates = {rank for group in replicas for rank in group}
    for name, role in config.role_settings.items():
        shared = generates.intersection(train[name].grid.ranks())
        if shared:
            raise ConfigError(
                f"rollout.staleness = {config.rollout.staleness}: rank {min(shared)} generates and "
                f"computes the {role.name}, so that one waits for the other; give generation ranks "
                "that no role has (placement.rollout, and placement.train for the others)"
            )


def _check_ranks(pools: Iterable[Pool], num_ranks: int) -> None:
    idle = sorted(set(range(num_ranks)) - {rank for pool in pools for rank in pool.ranks})
    if idle:
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        raise ConfigError(
            f"placement: rank {idle[0]}{more} of {num_ranks} would have nothing to do; give them "
            "to a label, or start fewer ranks"
        )


def _check_labels(config: RunConfig, labels: Iterable[str], used: Iterable[str]) -> None:
    for label in labels:
        if label not in used or (label in (ROLLOUT, REWARD) and not config.generates):
            raise ConfigError(
                f"placement.{label} = {config.placement[label]}: no role of recipe "
                f"{config.recipe} is placed there; "
                f"{near_or_all(label, [*config.role_settings, TRAIN, ROLLOUT, REWARD], 'labels')}"
            )


def _pool(pools: dict[str, Pool], label: str, role: str, layout: TrainLayout) -> str:
    """The pool of a training layout, a new one if none has its groups."""
    groups = tuple(layout.data_grid.ranks(dp=index) for index in range(layout.num_replicas))
    for pool in pools.values():
        if pool.groups == groups:
            return pool.name
    reserved = {ROLLOUT, REWARD} - {role}
    names = chain((label, role), (f"{role}_{number}" for number in count(2)))
    name = next(name for name in names if name not in pools and name not in reserved)
    pools[name] = Pool(name, groups)
    return name


def _train_layout(role: RoleSettings, ranks: range, labels: Collection[str]) -> TrainLayout:
    # Data parallelism takes what the model-parallel sizes leave of the ranks.
    sizes, num_ranks = role.parallel, len(ranks)
    whose, more = "", "start"
    if role.label in labels:
        whose, more = f" of placement.{role.label}", "give it"
    where = parallel_setting(role)
    replica = sizes.tensor_parallel * sizes.pipeline_parallel * sizes.context_parallel
    if num_ranks % replica:
        context = f" x context_parallel {sizes.context_parallel}" * (sizes.context_parallel > 1)
        raise ConfigError(
            f"{where}: tensor_parallel {sizes.tensor_parallel} x pipeline_parallel "
            f"{sizes.pipeline_parallel}{context} = {replica} does not divide the {num_ranks} "
            f"ranks{whose}; {more} a multiple of {replica} ranks, or choose smaller sizes"
        )
    dp = num_ranks // replica
    if sizes.data_parallel not in (None, dp):
        raise ConfigError(
            f"{where}.data_parallel = {sizes.data_parallel}, but {num_ranks} ranks / "
            f"{replica} ranks of a replica give {dp}; start "
            f"{(sizes.data_parallel or 1) * replica} ranks, or leave it out"
        )
    shard_size = sizes.fsdp.shard_size if sizes.fsdp is not None else None
    if shard_size is not None and dp % shard_size:
        raise ConfigError(
            f"{where}.fsdp.shard_size = {shard_size} does not divide the {dp} ranks{whose}; choose "
            "a divisor, such as the GPUs of a node, or leave it out"
        )
    return TrainLayout(
        tp=sizes.tensor_parallel,
        pp=sizes.pipeline_parallel,
        dp=dp * sizes.context_parallel,
        vpp=sizes.virtual_pipeline,
        ep=sizes.expert_parallel,
        etp=sizes.expert_tensor_parallel,
        first_rank=ranks[0],
        cp=sizes.context_parallel,
        shard_size=shard_size,
    )


def _replicas(config: RunConfig, actor: TrainLayout, ranks: range) -> tuple[Groups, Grouping]:
    """Rollout engines on some ranks; interleaved only where the actor's ranks are the same."""
    rollout = config.rollout
    pool = (
        actor
        if tuple(ranks) == actor.grid.ranks()
        else TrainLayout(dp=len(ranks), first_rank=ranks[0])
    )
    tp, pp = rollout.tensor_parallel, rollout.pipeline_parallel
    applies = zero_redundancy_applies(pool.tp, tp) and pp == 1
    grouping: Grouping = rollout.grouping or ("zero_redundancy" if applies else "contiguous")
    try:
        return generation_groups(pool.grid, tp, grouping, pp), grouping
    except LayoutError as error:
        raise ConfigError(f"parallel / rollout: {error}") from None
