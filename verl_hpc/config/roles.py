"""The models of a run: which roles a recipe has, and what each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from verl_hpc.config.base import PathText, Section
from verl_hpc.config.explain import near_or_all
from verl_hpc.config.model import ModelConfig, OffloadConfig, OptimizerConfig, ParallelConfig

if TYPE_CHECKING:
    from verl_hpc.config.run import RunConfig

Head = Literal["language_model", "value", "score"]
"""What a model computes of each token: the log-prob of the next one, or a value; or of a whole
sequence: a score."""

RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]

ACTOR, CRITIC, REFERENCE, REWARD = "actor", "critic", "reference", "reward"


class RoleConfig(Section):
    """One model of a run. What is null is taken from the sections that all roles share."""

    path: PathText | None = None
    """Weights to start from: a model directory, or a step of another run; model.path if null."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Element type of parameters and activations; model.dtype if null."""
    head: Head | None = None
    """language_model gives log-probs, value a number for each token, score one for a sequence
    (AutoModelForSequenceClassification with one label). null takes what goes with the role's name:
    value for critic and cost_critic, score for reward and cost, language_model for others."""
    trainable: bool | None = None
    """Whether it has an optimizer. null: actor, critic and cost_critic
    have, and the role of recipe reward_model."""
    placement: RoleName | None = None
    """The label of `placement` whose ranks it has; null takes the one of its own name if there is
    one, else train; the reference then has the actor's."""
    parallel: ParallelConfig | None = None
    """Its layout on the ranks of its label, which others there need not have; parallel if null."""
    optimizer: OptimizerConfig | None = None
    """optimizer if null; a value head's learning rate is 1e-5 then."""
    offload: OffloadConfig | None = None
    """offload if null."""


@dataclass(frozen=True)
class RoleSettings:
    """A role with everything decided."""

    name: str
    head: Head
    model: ModelConfig
    parallel: ParallelConfig
    optimizer: OptimizerConfig | None
    """None where it is not trained."""
    offload: OffloadConfig
    label: str
    """Of its ranks."""
    shares: str | None = None
    """The role in whose engine it computes, with weights of its own: the reference is the actor as
    it was at the start."""

    @property
    def trainable(self) -> bool:
        return self.optimizer is not None


_HEADS: Mapping[str, Head] = {
    CRITIC: "value",
    "cost_critic": "value",
    REWARD: "score",
    "cost": "score",
}
_NOT_ROLES = ("train", "rollout", "scoring")
_TRAINED = (ACTOR, CRITIC, "cost_critic")
TRAIN = "train"
"""Label of the ranks of roles that have none of their own; all ranks if it is not given."""


def roles_of_recipe(config: RunConfig) -> tuple[str, ...]:
    """Names of the roles that the run's recipe works with, the actor first.

    A recipe of the user's works with the roles that the configuration names, or with an actor.
    """
    if config.has_own_recipe:
        return tuple(sorted(config.roles, key=lambda name: name != ACTOR)) or (ACTOR,)
    if config.recipe == "reward_model":
        return (REWARD,)
    found = [ACTOR]
    if config.recipe == "sft":
        return tuple(found)
    if config.recipe == "ppo":
        found.append(CRITIC)
    if config.algorithm.kl.placement != "none":
        found.append(REFERENCE)
    if REWARD in config.roles:
        found.append(REWARD)
    return tuple(found)


def check_roles(config: RunConfig) -> None:
    """Raises: ValueError: a role that no operator of the recipe uses, or of a reserved name."""
    used = roles_of_recipe(config)
    for name in config.roles:
        if name in _NOT_ROLES:
            raise ValueError(
                f"roles.{name}: no role can have this name, which is a label's; choose another"
            )
        if name not in used:
            raise ValueError(
                f"roles.{name}: no operator of recipe {config.recipe} uses this role; "
                f"{near_or_all(name, used, 'roles')}"
            )


def role_settings(config: RunConfig) -> dict[str, RoleSettings]:
    """Every role of a run by its name, the actor first."""
    return {name: _settings(config, name) for name in roles_of_recipe(config)}


def label_of(name: str, chosen: str | None, labels: Iterable[str]) -> str:
    """The label of a role's ranks."""
    return chosen or (name if name in labels else TRAIN)


def _settings(config: RunConfig, name: str) -> RoleSettings:
    role = config.roles.get(name, RoleConfig())
    model = {"path": role.path, "dtype": role.dtype}
    head = role.head or _HEADS.get(name, "language_model")
    learns = name in _TRAINED or config.recipe == "reward_model"
    trainable = learns if role.trainable is None else role.trainable
    label = label_of(name, role.placement, config.placement)
    shares = None
    if name == REFERENCE:
        actor = config.roles.get(ACTOR, RoleConfig())
        if role.placement is None and name not in config.placement:
            label = label_of(ACTOR, actor.placement, config.placement)
        own = (role.path, role.dtype, role.parallel, role.placement)
        if own == (None,) * len(own) and name not in config.placement and not trainable:
            shares = ACTOR
    optimizer = None
    if trainable:
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
        shares,
    )
