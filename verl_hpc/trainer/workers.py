"""What a rank has to work with: its engines, data, reward function and layouts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from verl_hpc.algorithms.kl import KlController
from verl_hpc.checkpoint.weights import Weights, hf_files, open_weights
from verl_hpc.config.model import ModelConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Order
from verl_hpc.data.prompts import load_tokenizer
from verl_hpc.data.sources import Source
from verl_hpc.engines.factory import build_engine, describe_kernels, start_layouts
from verl_hpc.engines.protocol import Head, TrainingEngine
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.planner.layouts import RunLayouts, run_layouts
from verl_hpc.rewards.registry import RewardFunction, get_reward_function
from verl_hpc.rollout.factory import build_rollout, check_model
from verl_hpc.rollout.protocol import RolloutEngine, replica_of
from verl_hpc.runs.lock import RunLock
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.session import Session
from verl_hpc.runtime.stop import StopFlag
from verl_hpc.trainer.fingerprint import fingerprint
from verl_hpc.trainer.kept import KeptResponses
from verl_hpc.trainer.problems import Problems, open_problems
from verl_hpc.trainer.reference import ReferenceWeights
from verl_hpc.trainer.sync import WeightSync, device_to_itself
from verl_hpc.transfer.execute import Transfer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)

TRAIN = "train"
"""Placement: samples are dealt to data-parallel replicas of the training layout."""
ROLLOUT = "rollout"
"""Placement: samples are dealt to rollout engines."""


@dataclass
class Workers:
    """Engines and helpers of one rank; operators take what they need from it."""

    session: Session
    config: RunConfig
    arch: Architecture
    layouts: RunLayouts
    hf_files: Mapping[str, Path]
    """The model's config.json, tokenizer and the like by name, for checkpoints."""
    tokenizer: PreTrainedTokenizerBase
    problems: Problems
    order: Order
    actor: TrainingEngine
    critic: TrainingEngine | None = None
    reference: ReferenceWeights | None = None
    rollout: RolloutEngine | None = None
    sync: WeightSync | None = None
    reward: RewardFunction | None = None
    stop: StopFlag | None = None
    lock: RunLock | None = None
    """Of the run directory; rank 0 has it."""
    replica_control: Control | None = None
    """Of the ranks that share a rollout engine."""
    kept: KeptResponses | None = None
    """None where finished responses of an interrupted rollout are dropped."""
    kl: KlController = field(default_factory=lambda: KlController(0.0))
    fingerprint: dict[str, str] = field(default_factory=dict)
    """What may not change when the run goes on (`trainer.fingerprint`)."""

    @property
    def train_source(self) -> Source:
        return self.problems.train

    @property
    def evaluation_source(self) -> Source | None:
        return self.problems.evaluation

    @property
    def rank(self) -> int:
        return self.session.world.rank

    @property
    def kernels(self) -> dict[str, str]:
        """What computes layers and attention, in training and in generation."""
        found = describe_kernels(self.config.model)
        if self.rollout is not None:
            found["rollout attention"] = self.rollout.attention
        return found

    @property
    def groups(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Groups of ranks that share samples, by placement."""
        return {TRAIN: self.layouts.model_groups, ROLLOUT: self.layouts.replicas}

    def group_index(self, placement: str) -> int:
        """Which group of a placement this rank is in."""
        index = replica_of(self.groups[placement], self.rank)
        assert index is not None, (placement, self.rank)
        return index

    def told_to_leave(self) -> bool:
        """Whether a rank of this rollout engine was told to leave at once; its ranks ask
        together."""
        assert self.replica_control is not None
        mine = self.stop is not None and self.stop.wish().at_once
        return self.replica_control.any(mine) if self.replica_control.size > 1 else mine

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over data-parallel replicas."""
        if self.layouts.train.dp > 1:
            total = tensor.clone()
            group = self.session.groups.mine(self.layouts.train.grid.groups("dp"))
            dist.all_reduce(total, group=group)
            return total
        return tensor


def build_workers(
    session: Session,
    config: RunConfig,
    enter: Callable[[str], object] | None = None,
    resumes: bool = False,
) -> Workers:
    """Build everything a recipe needs; every rank calls it.

    Args:
        session: of this rank.
        config: of the run.
        enter: told what begins, instead of the session alone.
        resumes: `restore` follows and fills the engines: only a KL reference needs first weights.

    Raises:
        ConfigError, ModelError, DataError, RewardError: on every rank alike, before any engine is
            built, where the configuration, the model, the data or the reward do not work.
    """
    together, enter = session.control.together, enter or session.enter
    leads = session.world.rank == 0
    enter("read model, data and reward")
    weights = together(lambda: open_weights(config.model.path, check_files=leads))
    layouts = together(lambda: run_layouts(config, weights.arch, session.world.size))
    files = together(lambda: hf_files(weights.hf_directory) if leads else {})
    together(lambda: check_model(weights.hf_directory))
    tokenizer = together(
        lambda: load_tokenizer(_tokenizer_path(config, weights), weights.arch.vocab_size)
    )
    reward = together(lambda: get_reward_function(config.reward)) if config.generates else None
    problems = open_problems(session, config, tokenizer)
    kl = config.algorithm.kl
    has_reference = config.recipe != "sft" and kl.placement != "none"
    first = weights if has_reference or not resumes else None
    known = fingerprint(
        session.control,
        config,
        weights,
        Path(_tokenizer_path(config, weights)),
        reads_weights=first is not None,
    )
    enter("build actor")
    start_layouts(session.groups, [layouts.train], config.seed)
    _say_what_is_slow(session, config.model)
    workers = Workers(
        session,
        config,
        weights.arch,
        layouts,
        files,
        tokenizer,
        problems,
        Order(len(problems.train), config.seed, config.data.shuffle),
        actor=_build_engine(session, config, weights.arch, layouts, "actor"),
        reward=reward,
        fingerprint=known,
    )
    if first is not None:
        _load_weights(session, workers.actor, first)
    if config.recipe == "ppo":
        enter("build critic")
        workers.critic = _build_critic(session, config, weights, layouts, resumes)
    if config.generates:
        enter(f"build rollout ({config.rollout.engine})")
        engines = [engine for engine in (workers.actor, workers.critic) if engine is not None]
        with device_to_itself(engines, config):
            workers.rollout = _build_rollout(session, config, weights, layouts)
            workers.rollout.sleep()
        workers.kept = KeptResponses() if config.rollout.on_interrupt == "keep" else None
        workers.replica_control = session.control.split(workers.group_index(ROLLOUT))
        workers.sync = WeightSync(session, config, workers.actor, workers.critic, workers.rollout)
    if has_reference:
        workers.reference = ReferenceWeights(workers.actor)
        target = kl.target if kl.controller == "adaptive" else None
        workers.kl = KlController(kl.coefficient, target, kl.horizon)
    return workers


def _say_what_is_slow(session: Session, model: ModelConfig) -> None:
    """A GPU without Transformer Engine computes the same, and is slower."""
    layers = session.control.together(lambda: describe_kernels(model))["training layers"]
    if session.world.rank == 0 and session.world.device != "cpu" and "PyTorch" in layers:
        _logger.warning(
            "layers are computed by %s; Transformer Engine's are faster (docs/gpu.md)", layers
        )


def _tokenizer_path(config: RunConfig, weights: Weights) -> str:
    return config.model.tokenizer or str(weights.hf_directory)


def _build_engine(
    session: Session, config: RunConfig, arch: Architecture, layouts: RunLayouts, name: str
) -> TrainingEngine:
    """An engine whose weights are zero."""
    is_actor = name == "actor"
    head: Head = "language_model" if is_actor else "value"
    return session.control.together(
        lambda: build_engine(
            arch,
            layouts.train,
            config.model,
            config.parallel,
            head=head,
            optimizer=config.optimizer if is_actor else config.critic.optimizer,
            max_tokens=config.batch.max_tokens_per_micro_batch,
            name=name,
        )
    )


def _load_weights(session: Session, engine: TrainingEngine, weights: Weights) -> None:
    """A transfer from files."""
    # A critic's head may have no source to come from; it starts at zero.
    names = [n for n in engine.shard_map.tensors if n in weights.shard_map.tensors]
    plan = session.control.together(
        lambda: plan_transfer(
            weights.shard_map, engine.shard_map.restricted_to(names), session.world.node_of
        )
    )
    Transfer(plan, session.world.rank, weights.reader).run(
        {}, engine.weights, engine.dtype, session.control.together
    )
    engine.weights_changed()


def _build_critic(
    session: Session, config: RunConfig, weights: Weights, layouts: RunLayouts, resumes: bool
) -> TrainingEngine:
    path = config.critic.path
    chosen = weights
    if path is not None:
        chosen = session.control.together(
            lambda: open_weights(path, head="value", check_files=session.world.rank == 0)
        )
    critic = _build_engine(session, config, chosen.arch, layouts, "critic")
    if not resumes:
        _load_weights(session, critic, chosen)
    return critic


def _build_rollout(
    session: Session, config: RunConfig, weights: Weights, layouts: RunLayouts
) -> RolloutEngine:
    engine = session.control.together(
        lambda: build_rollout(
            session.world,
            weights.arch,
            str(weights.hf_directory),
            _tokenizer_path(config, weights),
            layouts.replicas,
            config.rollout,
            config.rollout.dtype or config.model.dtype,
        )
    )
    assert engine is not None, "all ranks generate"
    name, rank = f"rollout.engine = {config.rollout.engine}", session.world.rank
    session.control.together(lambda: check_parameters(engine.shard_map, rank, engine.weights, name))
    return engine
