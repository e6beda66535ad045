"""The models of a run: which roles a recipe has, and what each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OffloadConfig, OptimizerConfig, ParallelConfig
from verl_hpc.config.role import (
    ACTOR,
    CRITIC,
    PRM,
    PRM_REFERENCE,
    REFERENCE,
    REWARD,
    TEACHER,
    Head,
    RoleConfig,
)
from verl_hpc.config.sections import PREFERENCES, RunSections
from verl_hpc.section import is_own

FIRST_OF = {REFERENCE: ACTOR, PRM_REFERENCE: PRM}
"""Roles that keep the starting weights of another one, unless given a model of their own."""


@dataclass(frozen=True)
class RoleSettings:
    """Resolved settings of one role."""

    name: str
    head: Head
    model: ModelConfig
    parallel: ParallelConfig
    optimizer: OptimizerConfig | None
    """Optimizer settings; None if the role is not trained."""
    offload: OffloadConfig
    label: str
    """Label of its ranks."""
    shares: str | None = None
    """The role whose engine it shares, with weights of its own: a reference computes in the actor's
    engine with the actor's starting weights."""
    lora: LoraConfig | None = None
    """Adapters that are trained in place of its weights."""
    first_of: str | None = None
    """The role whose starting weights it keeps, in an engine of its own."""

    @property
    def trainable(self) -> bool:
        return self.optimizer is not None

    @property
    def moments(self) -> str:
        """Element type of its optimizer's moments; float32 without one."""
        return self.optimizer.moments if self.optimizer is not None else "float32"


_HEADS: Mapping[str, Head] = {
    CRITIC: "value",
    "cost_critic": "value",
    REWARD: "score",
    "cost": "score",
}
_TRAINED = (ACTOR, CRITIC, "cost_critic", PRM)
TRAIN = "train"
"""Label of the ranks of roles that have none of their own; all ranks if it is not given."""


def roles_of_recipe(config: RunSections) -> tuple[str, ...]:
    """Names of the roles that the run's recipe works with, the actor first.

    A recipe of the user's works with the roles that the configuration names, or with an actor.
    """
    if config.tasks:
        tasks = map(roles_of_recipe, config.by_task.values())
        return tuple(dict.fromkeys(role for roles in tasks for role in roles))
    if config.has_own_recipe:
        return tuple(sorted(config.roles, key=lambda name: name != ACTOR)) or (ACTOR,)
    if config.recipe == "reward_model":
        return (REWARD,)
    roles = [ACTOR]
    if config.recipe == "sft":
        return tuple(roles)
    if config.recipe == "distillation":
        scored = config.has_advantages and REWARD in config.roles
        return (ACTOR, TEACHER, *[REWARD] * scored)
    if config.recipe in ("dpo", "kto"):
        return (ACTOR, REFERENCE) if _has_reference(config) else (ACTOR,)
    advantage = config.algorithm.advantage
    # What the user's own code needs is only known once its file is loaded.
    if "values" in advantage.needs or (is_own(advantage.name) and CRITIC in config.roles):
        roles.append(CRITIC)
    if "process_rewards" in advantage.needs or (is_own(advantage.name) and PRM in config.roles):
        roles += [PRM, PRM_REFERENCE]
    if config.algorithm.kl.placement != "none":
        roles.append(REFERENCE)
    if REWARD in config.roles:
        roles.append(REWARD)
    return tuple(roles)


def _has_reference(config: RunSections) -> bool:
    """Whether a recipe that learns preferences compares with a reference."""
    loss = config.algorithm.preference
    if config.recipe == "kto":
        return True
    # What the user's own code needs is only known once its file is loaded.
    return REFERENCE in config.roles if is_own(loss.name) else not loss.reference_free


def role_settings(config: RunSections) -> dict[str, RoleSettings]:
    """Every role of a run by its name, the actor first."""
    return {name: _settings(config, name) for name in roles_of_recipe(config)}


def label_of(name: str, chosen: str | None, labels: Iterable[str]) -> str:
    """The label of a role's ranks."""
    return chosen or (name if name in labels else TRAIN)


def _settings(config: RunSections, name: str) -> RoleSettings:
    role = config.roles.get(name, RoleConfig())
    owner = FIRST_OF.get(name)
    owner = owner if owner in roles_of_recipe(config) else None
    # A reference in its owner's engine has all of its settings, but is not trained.
    if owner is not None and shares_engine(config, name):
        return replace(_settings(config, owner), name=name, optimizer=None, lora=None, shares=owner)
    model = {"path": _path(config, name), "dtype": role.dtype}
    head = role.head or default_head(name)
    label = label_of(name, role.placement, config.placement)
    # A reference with an engine of its own still runs on its owner's ranks by default.
    if owner is not None and role.placement is None and name not in config.placement:
        first = config.roles.get(owner, RoleConfig())
        label = label_of(owner, first.placement, config.placement)
    optimizer = None
    if is_trained(config, name):
        default = OptimizerConfig(lr=1e-5) if head == "value" else config.optimizer
        optimizer = role.optimizer or default
    return RoleSettings(
        name,
        head,
        config.model.model_copy(update={k: v for k, v in model.items() if v is not None}),
        role.parallel or config.parallel,
        optimizer,
        role.offload or config.offload,
        label,
        lora=_lora(config, role) if optimizer is not None else None,
        first_of=owner if optimizer is None else None,
    )


def _lora(config: RunSections, role: RoleConfig) -> LoraConfig | None:
    if role.lora == "none":
        return None
    return role.lora or config.lora


def _path(config: RunSections, name: str) -> str | None:
    """Return the path of the weights that a role starts from; None takes model.path."""
    path = config.roles.get(name, RoleConfig()).path
    first = {**FIRST_OF, PRM: ACTOR}.get(name)
    return _path(config, first) if path is None and first is not None else path


def shares_engine(config: RunSections, name: str) -> bool:
    """Whether a reference computes in its owner's engine: no setting makes it another model or puts
    it elsewhere."""
    role = config.roles.get(name, RoleConfig())
    own = (role.path, role.dtype, role.parallel, role.placement)
    return (
        own == (None,) * len(own) and name not in config.placement and not is_trained(config, name)
    )


def default_head(name: str) -> Head:
    """The head that goes with a role's name."""
    return _HEADS.get(name, "language_model")


def is_trained(config: RunSections, name: str) -> bool:
    """Whether a role has an optimizer."""
    chosen = config.roles.get(name, RoleConfig()).trainable
    return trained_by_recipe(config, name) if chosen is None else chosen


def trained_by_recipe(config: RunSections, name: str) -> bool:
    return name in _TRAINED or config.recipe == "reward_model"


def generates(config: RunSections) -> bool:
    """Whether the run samples responses."""
    if config.tasks:
        evaluates = config.evaluation.wanted and config.rollout.engine != "none"
        return evaluates or any(map(generates, config.by_task.values()))
    trains_only = config.recipe == "sft" and not config.evaluation.wanted
    trains_only = trains_only or config.recipe in PREFERENCES
    has_engine = config.rollout.engine != "none"
    return has_engine and not trains_only and ACTOR in roles_of_recipe(config)


def calls_reward(config: RunSections) -> bool:
    """Whether the reward function scores responses to train on; else a model does. This is not
    known for a recipe of the user's."""
    if config.tasks:
        return any(map(calls_reward, config.by_task.values()))
    return config.has_advantages and REWARD not in roles_of_recipe(config)
