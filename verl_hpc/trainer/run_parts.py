"""The parts of a run on one rank: roles, placements, data and helpers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.algorithms.kl import KlController
from verl_hpc.checkpoint.weights import Weights
from verl_hpc.config.algorithm import KlConfig
from verl_hpc.config.explain import near_or_all
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Order
from verl_hpc.data.prompts import Encoder
from verl_hpc.engines.factory import describe_kernels
from verl_hpc.engines.protocol import TrainingEngine
from verl_hpc.environments.processes import Environments
from verl_hpc.errors import FlowError
from verl_hpc.generation.ahead import AsyncScorer
from verl_hpc.generation.rollout import Rollout
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.rewards.scorer import Scorer
from verl_hpc.runs.lock import RunLock
from verl_hpc.runtime.session import Session
from verl_hpc.runtime.stop import StopFlag
from verl_hpc.step.exchange import Communicators, Exchange
from verl_hpc.step.number import Number
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import Problems
from verl_hpc.step.role import Role
from verl_hpc.trainer.kept_caches import KeptCaches
from verl_hpc.trainer.sync import WeightSync

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from verl_hpc.generation.programs import ProgramHost


@dataclass
class RunParts:
    """Everything that one rank holds of a run. `RunContext` adds operators' settings."""

    session: Session
    config: RunConfig
    arch: Architecture
    """Sizes of the first role's model."""
    layouts: RunLayouts
    controls: Communicators
    places: Mapping[str, Placement]
    """Placements by the name of their pool."""
    roles: Mapping[str, Role]
    hf_files: Mapping[str, Path]
    """The model's config.json, tokenizer and the like by name, for checkpoints."""
    encoder: Encoder
    problems: Problems
    order: Order
    rollout: Rollout | None = None
    sync: WeightSync | None = None
    reward: Scorer | None = None
    ahead: AsyncScorer | None = None
    """Worker processes that score; None if the rank scores itself."""
    environments: Environments | None = None
    """Environments of rollout.environment."""
    programs: ProgramHost | None = None
    """What runs the programs of rollout.program."""
    stop: StopFlag | None = None
    lock: RunLock | None = None
    """Lock of the run directory, on rank 0."""
    caches: KeptCaches | None = None
    """None if compile caches are not kept after the job."""
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """Opened weights that roles start from, by role."""
    tokenizer_path: str = ""
    """Directory of the tokenizer."""
    own_files: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    """`hf_files` of trained roles that have their own model, by role."""
    kl: KlController = field(default_factory=lambda: KlController(0.0))
    fingerprint: dict[str, str] = field(default_factory=dict)
    """Entries that may not change when the run is resumed (`trainer.fingerprint`)."""

    numbers: dict[str, Number] = field(default_factory=dict)
    """Numbers of the recipe, by name."""
    let_change: Callable[[], None] = lambda: None
    """Called before a model computes, which may change weights, if only for a reference's pass."""
    task: str = ""
    """Name of the task that this is the run of, in a run with several."""

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.encoder.tokenizer

    @cached_property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.num_steps(len(self.problems.train))

    @cached_property
    def rank(self) -> int:
        return self.session.world.rank

    @cached_property
    def ranks(self) -> Mapping[str, Sequence[int]]:
        """Ranks of every placement, by name."""
        return {name: place.ranks for name, place in self.places.items()}

    @property
    def every_role(self) -> Mapping[str, Role | Rollout]:
        """All roles by name, including the rollout."""
        return {**self.roles, **({"rollout": self.rollout} if self.rollout else {})}

    @property
    def trained(self) -> list[Role]:
        """Trained roles, which checkpoints hold, in order."""
        return [role for role in self.roles.values() if role.settings.trainable]

    @property
    def engines(self) -> list[TrainingEngine]:
        """All training engines of this rank."""
        return [role.training for role in self.roles.values() if role.training is not None]

    def place(self, name: str) -> Placement:
        """Return the placement of a role, of generation (rollout), of the reward function
        (scoring), or by its own name.

        Raises:
            FlowError: the run has no such placement.
        """
        pools = self.layouts.pool_of
        if name not in pools and name not in self.places:
            raise FlowError(
                f"placement {name!r}: the run has none of this name; "
                f"{near_or_all(name, [*pools, *self.places], 'placements')}"
            )
        return self.places[pools.get(name, name)]

    def number(self, name: str, value: float, place: str) -> Number:
        """Return a number that operators on `place` update and checkpoints hold.

        Args:
            name: its name in the checkpoint's state.
            value: initial value of a new run.
            place: role or placement, see `RunParts.place`.
        """
        return self.numbers.setdefault(name, Number(value, self.place(place)))

    @cached_property
    def exchange(self) -> Exchange:
        return Exchange(self.session.world, self.places, self.controls)

    def prepare(self) -> None:
        """Make room for models before they compute, and let a save copy them."""
        self.let_change()
        if self.sync is not None:
            self.sync.to_training()

    @property
    def kernels(self) -> dict[str, str]:
        """Kernels of layers and attention in training and generation, listed separately for roles
        that differ from the first."""
        kernels: dict[str, str] = {}
        for name, role in self.config.role_settings.items():
            own = describe_kernels(role.model, role.parallel, self.roles[name].arch)
            first = kernels or own
            kernels |= {f"{key} of the {name}": s for key, s in own.items() if first[key] != s}
            kernels = first | kernels
        if self.rollout is not None and self.rollout.engine is not None:
            kernels["rollout attention"] = self.rollout.engine.attention
        return kernels


def kl_controller(config: KlConfig) -> KlController:
    """Return the controller of a KL penalty's coefficient; 0 without a penalty."""
    if config.placement == "none":
        return KlController(0.0)
    target = config.target if config.controller == "adaptive" else None
    return KlController(config.coefficient, target, config.horizon)
