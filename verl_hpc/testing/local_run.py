"""A run inside this process: a `RunContext` of one rank with the engines of `testing.local`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.data.mixed import order_of
from verl_hpc.data.prompts import Encoder
from verl_hpc.environments.processes import start_environments
from verl_hpc.generation.kept import KeptResponses, rollout_key
from verl_hpc.generation.rollout import Rollout
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import ROLLOUT, Pool, RunLayouts, place_roles
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.runtime.one_rank import LocalControl as LocalControl
from verl_hpc.runtime.one_rank import local_session as local_session
from verl_hpc.runtime.stop import Signals, StopFlag
from verl_hpc.step.exchange import Communicators
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import open_problems
from verl_hpc.step.role import InitialWeights, Role
from verl_hpc.testing.local import LocalEngine, tiny_architecture
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.run_parts import kl_controller
from verl_hpc.trainer.sync import WeightSync, offloads_of
from verl_hpc.trainer.tasks import open_tasks

CPU = torch.device("cpu")


class LetterTokenizer:
    """Token 0 ends a text; 1, 2, ... are the letters a, b, ...; other characters are left out."""

    eos_token_id = 0
    eos_token = "."
    chat_template = None

    def __init__(self, vocab_size: int = 12) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        del add_special_tokens
        before = ord("a") - 1
        return [t for letter in text if 0 < (t := ord(letter) - before) < self.vocab_size]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        end = "" if skip_special_tokens else self.eos_token
        return "".join(chr(ord("a") + token - 1) if token else end for token in tokens)


def local_place(name: str = "train") -> Placement:
    """Return a placement of this rank alone."""
    return Placement(Pool(name, ((0,),)), 0, LocalControl(), CPU)


def local_run(config: RunConfig, signals: Signals | None = None) -> RunContext:
    """Build what `build_run` does from tiny models, whose seeds are the roles' positions in the
    run.

    Args:
        config: configuration of the run; its data and reward are used, its models are not.
        signals: signals that the run receives.
    """
    session, arch = local_session(), tiny_architecture()
    layouts = place_roles(config, 1)
    places = {p.name: Placement(p, 0, session.control, CPU) for p in layouts.pools.values()}
    tokenizer: Any = LetterTokenizer(arch.vocab_size)
    config.run_directory.mkdir(parents=True, exist_ok=True)
    encoder = Encoder.from_config(tokenizer, config.data)
    problems = open_problems(session, config, encoder)
    run = RunContext(
        session,
        config,
        arch,
        layouts,
        Communicators(session.control),
        places,
        _roles(config.role_settings, layouts, places, arch),
        {},
        encoder,
        problems,
        order_of(problems.train, config.seed, config.data.shuffle),
        reward=make_scorer(config.reward) if config.generates else None,
        environments=start_environments(config.rollout.environment)
        if config.rollout.environment
        else None,
        kl=kl_controller(config.algorithm.kl),
        stop=StopFlag(session.control, config.run_directory, signals or Signals()),
    )
    if config.generates:
        _add_rollout(run)
    run.tasks = open_tasks(run)
    return run


def _roles(
    settings: Mapping[str, RoleSettings],
    layouts: RunLayouts,
    places: Mapping[str, Placement],
    arch: Architecture,
) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for seed, (name, role) in enumerate(settings.items()):
        engine = LocalEngine(arch, role.head, role.optimizer, seed)
        place = places[layouts.pool_of[name]]
        roles[name] = Role(
            name, role, place, arch, engine.layout, engine.shard_map, engine.shard_map
        )
        if role.shares:
            owner = roles[role.shares].training
            assert owner is not None
            roles[name].shared = InitialWeights(owner)
        else:
            roles[name].training = engine
    return roles


def _add_rollout(run: RunContext) -> None:
    engine = LocalRollout(run.arch, seed=len(run.roles))
    run.rollout = Rollout(
        run.places[ROLLOUT], engine.shard_map, engine, replica_control=LocalControl()
    )
    if run.config.rollout.on_interrupt == "keep":
        run.rollout.kept = KeptResponses(rollout_key(run.config))
    offloads = offloads_of(run.roles.values())
    run.sync = WeightSync(
        run.session, run.roles["actor"], run.rollout, offloads, torch.float32, checksums=True
    )


def engine_of(run: RunContext, role: str) -> LocalEngine:
    """Return the engine of a role of a local run."""
    return cast(LocalEngine, run.roles[role].training)
