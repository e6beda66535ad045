"""Build a run on every rank: roles and placements, engines, data, reward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.checkpoint.weights import Weights, check_types, hf_files, open_weights
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.config.role import ACTOR, CRITIC
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.data.mixed import order_of
from verl_hpc.data.prompts import Encoder, ImageTokens
from verl_hpc.data.tokenizer import load_tokenizer
from verl_hpc.engines.factory import describe_kernels, start_layouts
from verl_hpc.environments.processes import Environments, start_environments
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.generation.ahead import open_ahead
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.placement.layouts import Pool, RunLayouts, run_layouts
from verl_hpc.placement.model_checks import (
    check_batch_invariant,
    check_heads_on_cpus,
    check_tokenizers,
)
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.rollout.factory import check_model
from verl_hpc.runtime.session import Session
from verl_hpc.step.exchange import Communicators
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import open_problems
from verl_hpc.trainer.build_roles import add_rollout, build_engines, make_role
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.fingerprint import fingerprint
from verl_hpc.trainer.prompt_form import PROMPT_FORM, prompt_form, say_what_is_unused
from verl_hpc.trainer.run_parts import kl_controller
from verl_hpc.trainer.tasks import open_tasks

if TYPE_CHECKING:
    from verl_hpc.generation.programs import ProgramHost

_logger = logging.getLogger(__name__)


def build_run(session: Session, config: RunConfig, resumes: bool = False) -> RunContext:
    """Plan a run (`plan_run`) and build its engines."""
    run = plan_run(session, config, resumes=resumes)
    build_engines(run, session.enter, resumes)
    return run


def plan_run(
    session: Session,
    config: RunConfig,
    enter: Callable[[str], object] | None = None,
    resumes: bool = False,
) -> RunContext:
    """Build everything that a recipe uses, with roles and a rollout that have no engines yet; every
    rank calls it.

    Args:
        session: this rank's session.
        config: the run's configuration.
        enter: called with the name of each stage, instead of `session.enter`.
        resumes: `restore` will fill trained roles, which then load no weights unless they have
            adapters or another role shares their first weights.

    Raises:
        ConfigError, ModelError, DataError, RewardError: on every rank, if the configuration, a
        model, the data or the reward cannot be used.
    """
    together, enter = session.control.together, enter or session.enter
    leads = session.world.rank == 0
    enter("read model, data and reward")
    # 1. Models: open weights, check them against layouts, and load the tokenizer.
    settings = config.role_settings
    weights = together(lambda: _open_weights(settings, check_files=leads))
    first = next(iter(weights.values()))
    archs = {name: opened.arch for name, opened in weights.items()}
    together(lambda: _check_images(archs))
    layouts = together(
        lambda: run_layouts(
            config,
            first.arch,
            session.world.size,
            archs=archs,
            ranks_per_node=session.world.node_of.count(0),
        )
    )
    if config.rollout.batch_invariant:
        together(lambda: check_batch_invariant(first.arch, session.world.device))
    if session.world.device == "cpu":
        together(lambda: check_heads_on_cpus(config, first.arch))
    together(lambda: _check_bases(layouts.bases, settings, weights))
    files = together(lambda: hf_files(first.hf_directory) if leads else {})
    own_files = together(lambda: _own_files(settings, weights) if leads else {})
    together(lambda: check_model(first.hf_directory))
    tokenizer_path = config.model.tokenizer or str(first.hf_directory)
    tokenizer = together(lambda: load_tokenizer(tokenizer_path, first.arch.vocab_size))
    together(lambda: _check_tokenizers(Path(tokenizer_path), weights) if leads else None)
    # 2. Reward, environments and data.
    reward = together(lambda: make_scorer(config.reward)) if config.generates else None
    ahead = together(lambda: open_ahead(config))
    environments = together(lambda: _environments(config))
    began = session.control.broadcast(datetime.now().astimezone())
    reader = together(lambda: _image_reader(first.arch))
    encoder = together(lambda: Encoder.from_config(tokenizer, config.data, began, reader))
    programs = together(lambda: _programs(config, encoder))
    problems = open_problems(session, config, encoder)
    num_steps = config.num_steps(len(problems.train))
    settings = together(lambda: with_decay_steps(config, settings, num_steps))
    # 3. The fingerprint, compared with a checkpoint's on resuming.
    known = fingerprint(session.control, config, weights, Path(tokenizer_path), resumes)
    if form := prompt_form(encoder, problems.train):
        known[PROMPT_FORM] = form
    if leads:
        say_what_is_unused(config, encoder, form, problems.evaluation)
    # 4. Placements and roles, without engines.
    controls = Communicators(session.control)
    places = _places(session, layouts, controls, config.seed)
    run = RunContext(
        session,
        config,
        first.arch,
        layouts,
        controls,
        places,
        {},
        files,
        encoder,
        problems,
        order_of(problems.train, config.seed, config.data.shuffle),
        reward=reward,
        ahead=ahead,
        environments=environments,
        programs=programs,
        own_files=own_files,
        kl=kl_controller(config.algorithm.kl),
        fingerprint=known,
        weights=weights,
        tokenizer_path=tokenizer_path,
    )
    if any(role.parallel.engine == "megatron" for role in config.role_settings.values()):
        _say_what_is_slow(session, config.model)
    run.roles = {name: make_role(run, role) for name, role in settings.items()}
    if config.generates:
        add_rollout(run)
    run.tasks = open_tasks(run)
    return run


def with_decay_steps(
    config: RunConfig, settings: Mapping[str, RoleSettings], num_steps: int
) -> dict[str, RoleSettings]:
    """Set decay_steps, where a schedule needs and lacks it, to the role's optimizer steps in the
    whole run.

    Args:
        settings: all roles' settings, by name.
        num_steps: steps of the run.

    Raises:
        ConfigError: a role's warm-up is not shorter than that.
    """
    updated = dict(settings)
    for name, role in settings.items():
        optimizer = role.optimizer
        if optimizer is None or optimizer.schedule == "constant" or optimizer.decay_steps:
            continue
        late = config.critic.warmup_steps if name == ACTOR and CRITIC in settings else 0
        per_step = config.batch.mini_batches * config.batch.update_epochs
        decay_steps = max(num_steps - late, 0) * per_step
        if decay_steps <= optimizer.warmup_steps:
            raise ConfigError(
                f"optimizer of {name}: warmup_steps = {optimizer.warmup_steps} with schedule: "
                f"{optimizer.schedule}, and it takes {decay_steps} optimizer steps in the whole "
                "run; choose fewer, or schedule: constant"
            )
        updated[name] = replace(
            role, optimizer=optimizer.model_copy(update={"decay_steps": decay_steps})
        )
    return updated


def _environments(config: RunConfig) -> Environments | None:
    if config.rollout.environment is None:
        return None
    found = start_environments(config.rollout.environment)
    found.check()
    return found


def _programs(config: RunConfig, encoder: Encoder) -> ProgramHost | None:
    if config.rollout.program is None:
        return None
    # It needs vLLM's classes of requests, which others do without.
    from verl_hpc.generation.programs import ProgramHost

    return ProgramHost(config.rollout, encoder)


def _open_weights(settings: Mapping[str, RoleSettings], check_files: bool) -> dict[str, Weights]:
    """Open every role's weights, once for roles that share; from a checkpoint take the component of
    the role's name, or else the actor."""
    opened: dict[str, Weights] = {}
    checked: set[str] = set()
    for name, role in settings.items():
        if role.shares:
            opened[name] = opened[role.shares]
            continue
        path = role.model.path
        check, checked = check_files and path not in checked, checked | {path}
        weights = open_weights(
            path,
            name,
            "actor",
            check_files=check,
            head=role.head,
            new_head=role.trainable,
            engine=role.parallel.engine,
        )
        opened[name] = _resolved(weights, role)
    return opened


def _resolved(weights: Weights, role: RoleSettings) -> Weights:
    """Take the tensors that transformers' model has, of a family without a layer table.

    Raises:
        ConfigError: a tower that reads images is to be frozen, and there is none.
    """
    frozen_tower = role.model.vision_tower == "frozen"
    if frozen_tower and weights.arch.family not in WITH_IMAGES:
        raise ConfigError(
            f"model.vision_tower = frozen: a {weights.arch.family} reads no images; leave it out"
        )
    if weights.arch.published is None:
        return weights
    from verl_hpc.hf.model import resolved

    weights = replace(weights, arch=resolved(weights.arch, role.head, frozen_tower))
    check_types(weights, weights.hf_directory)
    return weights


def _check_images(archs: Mapping[str, Architecture]) -> None:
    """Raises: ModelError: the first role's model reads images, and another one's would read their
    tokens as words."""
    families = {name: arch.family for name, arch in archs.items()}
    first = next(iter(families.values()))
    for name, family in families.items() if first in WITH_IMAGES else ():
        if family not in WITH_IMAGES:
            raise ModelError(
                f"roles.{name}: a {family} reads no images, which prompts of a {first} may have; "
                "choose a model that does"
            )


def _image_reader(arch: Architecture) -> ImageTokens | None:
    """Return what reads a model's images, if it reads some."""
    if arch.published is None:
        return None
    from verl_hpc.hf.images import image_reader

    return image_reader(arch)


def _check_bases(
    bases: Mapping[str, str], settings: Mapping[str, RoleSettings], weights: Mapping[str, Weights]
) -> None:
    """Raises: ConfigError: two roles that share frozen weights in memory would start from different
    components of a step."""
    for name, base in bases.items():
        mine, theirs = weights[name].component, weights[base].component
        if mine != theirs:
            raise ConfigError(
                f"roles.{name}: {settings[name].model.path} holds a {mine} and a {theirs}, from "
                f"which {name} and {base} start, so that their frozen weights cannot be in memory "
                f"once; set lora.share_base: false, here or in roles.{name}.lora"
            )


def _own_files(
    settings: Mapping[str, RoleSettings], weights: Mapping[str, Weights]
) -> dict[str, Mapping[str, Path]]:
    """Return the small files of trained roles whose model differs from the first role's."""
    directories = {n: weights[n].hf_directory for n, role in settings.items() if role.trainable}
    first = next(iter(weights.values())).hf_directory
    return {n: hf_files(d) for n, d in directories.items() if d != first}


def _check_tokenizers(tokenizer: Path, weights: Mapping[str, Weights]) -> None:
    """Check the tokenizers of roles whose model differs from the first role's."""
    directories = {name: opened.hf_directory for name, opened in weights.items()}
    first = next(iter(directories.values()))
    check_tokenizers(tokenizer, {n: d for n, d in directories.items() if d != first})


def _places(
    session: Session, layouts: RunLayouts, controls: Communicators, seed: int
) -> dict[str, Placement]:
    """Make the placements of all pools, with control planes for each pool and pair; all ranks call
    it."""
    groups = session.groups
    start_layouts(groups, list(layouts.train.values()), seed)
    pools = list(layouts.pools.values())
    for pool in pools:
        groups.make(_across(pool))
    for one, other in combinations(pools, 2):
        controls.make([*one.ranks, *other.ranks])
    world = session.world
    return {
        pool.name: Placement(
            pool,
            world.rank,
            controls.make(pool.ranks),
            session.device,
            groups.mine(_across(pool)),
            len(pool.ranks) == world.size,
        )
        for pool in pools
    }


def _across(pool: Pool) -> list[tuple[int, ...]]:
    """Return the sets of ranks that have the same place in different groups."""
    return list(zip(*pool.groups, strict=True))


def _say_what_is_slow(session: Session, model: ModelConfig) -> None:
    """Warn if layers are computed without Transformer Engine on a GPU, which is slower."""
    found = session.control.together(lambda: describe_kernels(model, ParallelConfig()))
    layers = found["training layers"]
    if session.world.rank == 0 and session.world.device != "cpu" and "PyTorch" in layers:
        _logger.warning(
            "layers are computed by %s; Transformer Engine's are faster (docs/gpu.md)", layers
        )
