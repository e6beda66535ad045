"""A run of one process around models that are there already: what `PPOTrainer` drives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from verl_hpc.algorithms.kl import KlController
from verl_hpc.api.modules import architecture_of, check_apart, device_of, end_tokens, names_of
from verl_hpc.api.prompts import IdEncoder, StepPrompts
from verl_hpc.config.role import ACTOR, CRITIC
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Order
from verl_hpc.engines.module import ModuleEngine
from verl_hpc.generation.rollout import Rollout
from verl_hpc.placement.layouts import ROLLOUT, place_roles
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.rollout.module import ModuleRollout
from verl_hpc.runtime.one_rank import local_session
from verl_hpc.step.exchange import Communicators
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import Problems
from verl_hpc.step.role import InitialWeights, Role
from verl_hpc.trainer.context import RunContext


def assemble(
    config: RunConfig,
    actor: torch.nn.Module,
    critic: torch.nn.Module | None,
    tokenizer: Any,
    prompts: StepPrompts,
    reward: Scorer,
) -> RunContext:
    """Make a run of one rank: the modules are its roles' engines, the actor also generates.

    Raises:
        ModelError: a module has no parameters to train, or both share some.
    """
    device = device_of(actor)
    check_apart(actor, critic)
    session = local_session(device=str(device))
    layouts = place_roles(config, 1)
    places = {
        pool.name: Placement(pool, 0, session.control, device) for pool in layouts.pools.values()
    }
    modules = {ACTOR: actor, **({CRITIC: critic} if critic is not None else {})}
    roles: dict[str, Role] = {}
    for name, role in config.role_settings.items():
        place = places[layouts.pool_of[name]]
        if role.shares:
            owner = roles[role.shares]
            roles[name] = replace(owner, name=name, settings=role, place=place, training=None)
            roles[name].shared = InitialWeights(owner.trained)
            continue
        engine = ModuleEngine(
            modules[name],
            architecture_of(modules[name]),
            role.head,
            role.optimizer,
            device,
            config.batch.max_tokens_per_micro_batch,
            names_of(modules[name]),
        )
        maps = engine.layout, engine.shard_map, engine.trained_map
        roles[name] = Role(name, role, place, engine.arch, *maps, training=engine)
    run = RunContext(
        session,
        config,
        architecture_of(actor),
        layouts,
        Communicators(session.control),
        places,
        roles,
        {},
        IdEncoder(tokenizer, "never"),
        Problems(prompts, {}, {}),
        Order(1, config.seed, False),
        reward=reward,
    )
    run.kl = KlController(config.algorithm.kl.coefficient)
    trained = run.roles[ACTOR].trained
    weights = trained.weights, trained.shard_map
    ends = end_tokens(actor, tokenizer)
    generator = ModuleRollout(actor, ends, config.rollout, *weights)
    run.rollout = Rollout(
        places[ROLLOUT], generator.shard_map, generator, replica_control=session.control
    )
    return run
