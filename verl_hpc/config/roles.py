"""The models of a run: which roles a recipe has, and what each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OffloadConfig, OptimizerConfig, ParallelConfig
from verl_hpc.section import PathText, Section, is_own

if TYPE_CHECKING:
    from verl_hpc.config.run import RunConfig

Head = Literal["language_model", "value", "score"]
"""What a model computes of each token: the log-prob of the next one, or a value; or of a whole
sequence: a score."""

RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]

ACTOR, CRITIC, REFERENCE, REWARD = "actor", "critic", "reference", "reward"
TEACHER = "teacher"
PRM, PRM_REFERENCE = "prm", "prm_reference"
"""An implicit process reward model, and what it was at the start."""
_FIRST_OF = {REFERENCE: ACTOR, PRM_REFERENCE: PRM}
"""Roles that are another one as it was at the start, unless they are given a model of their own."""


class RoleConfig(Section):
    """One model of a run. What is null is taken from the sections that all roles share."""

    path: PathText | None = None
    """Weights to start from, as model.path, which is taken if null.
    The reference and prm then start as the actor does, and prm_reference as prm."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Element type of parameters and activations; model.dtype if null."""
    head: Head | None = None
    """language_model gives log-probs, value a number for each token, score one for a sequence
    (AutoModelForSequenceClassification with one label). null takes what goes with the role's name:
    value for critic and cost_critic, score for reward and cost, language_model for others."""
    trainable: bool | None = None
    """Whether it has an optimizer. null: actor, critic, cost_critic and prm have, and the role of
    recipe reward_model."""
    placement: RoleName | None = None
    """The label of `placement` whose ranks it has; null takes the one of its own name if there is
    one, else train; the reference then has the actor's, and prm_reference prm's."""
    parallel: ParallelConfig | None = None
    """Its layout on the ranks of its label, which others there need not have; parallel if null."""
    optimizer: OptimizerConfig | None = None
    """optimizer if null; a value head's learning rate is 1e-5 then."""
    offload: OffloadConfig | None = None
    """offload if null."""
    lora: LoraConfig | Literal["none"] | None = None
    """Its adapters; lora if null, and none trains all of its weights all the same."""


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
    lora: LoraConfig | None = None
    """Adapters that are trained in place of its weights."""
    first_of: str | None = None
    """The role that it is as it was at the start, in an engine of its own."""

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
_TRAINED = (ACTOR, CRITIC, "cost_critic", PRM)
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
    if config.recipe == "distillation":
        scored = config.has_advantages and REWARD in config.roles
        return (ACTOR, TEACHER, *[REWARD] * scored)
    if config.recipe in ("dpo", "kto"):
        return (ACTOR, REFERENCE) if _has_reference(config) else (ACTOR,)
    advantage = config.algorithm.advantage
    # What one of the user's needs is known where its file is loaded.
    if "values" in advantage.needs or (is_own(advantage.name) and CRITIC in config.roles):
        found.append(CRITIC)
    if "process_rewards" in advantage.needs or (is_own(advantage.name) and PRM in config.roles):
        found += [PRM, PRM_REFERENCE]
    if config.algorithm.kl.placement != "none":
        found.append(REFERENCE)
    if REWARD in config.roles:
        found.append(REWARD)
    return tuple(found)


def _has_reference(config: RunConfig) -> bool:
    """Whether a recipe that learns preferences compares with a reference."""
    loss = config.algorithm.preference
    if config.recipe == "kto":
        return True
    # What one of the user's needs is known where its file is loaded.
    return REFERENCE in config.roles if is_own(loss.name) else not loss.reference_free


def check_roles(config: RunConfig) -> None:
    """Raises: ValueError: a role that no operator of the recipe uses, or of a reserved name, or a
    setting that its role cannot have."""
    used = roles_of_recipe(config)
    for name, role in config.roles.items():
        if name in _NOT_ROLES:
            raise ValueError(
                f"roles.{name}: no role can have this name, which is a label's; choose another"
            )
        if name not in used:
            raise ValueError(
                f"roles.{name}: no operator of recipe {config.recipe} uses this role; "
                f"{near_or_all(name, used, 'roles')}"
            )
        if not config.has_own_recipe:
            _check_built_in(config, name, role)
        if role.optimizer is not None and not is_trained(config, name):
            raise ValueError(
                f"roles.{name}.optimizer: this role is not trained; leave it out, or set "
                f"roles.{name}.trainable: true"
            )
        if _FIRST_OF.get(name) in used and _shares(config, name):
            _check_shared(name, role)


def _check_built_in(config: RunConfig, name: str, role: RoleConfig) -> None:
    """A recipe of the package knows what it asks of each role."""
    head, trained = default_head(name), _trained_by_recipe(config, name)
    if role.head not in (None, head):
        raise ValueError(
            f"roles.{name}.head = {role.head}: recipe {config.recipe} needs {head} here; leave it "
            "out, or give the model to another role"
        )
    if role.trainable not in (None, trained):
        wanted = "trains this role" if trained else "does not train this role"
        raise ValueError(
            f"roles.{name}.trainable = {str(role.trainable).lower()}: recipe {config.recipe} "
            f"{wanted}; leave it out, or write a recipe of your own (docs/recipes.md)"
        )


def _check_shared(name: str, role: RoleConfig) -> None:
    owner = _FIRST_OF[name]
    for setting in ("head", "offload"):
        if getattr(role, setting) is not None:
            raise ValueError(
                f"roles.{name}.{setting}: the {name} computes in the {owner}'s engine; set "
                f"roles.{owner}.{setting}, or give the {name} a path, parallel or placement "
                "of its own"
            )


def role_settings(config: RunConfig) -> dict[str, RoleSettings]:
    """Every role of a run by its name, the actor first."""
    return {name: _settings(config, name) for name in roles_of_recipe(config)}


def label_of(name: str, chosen: str | None, labels: Iterable[str]) -> str:
    """The label of a role's ranks."""
    return chosen or (name if name in labels else TRAIN)


def _settings(config: RunConfig, name: str) -> RoleSettings:
    role = config.roles.get(name, RoleConfig())
    owner = _FIRST_OF.get(name)
    owner = owner if owner in roles_of_recipe(config) else None
    if owner is not None and _shares(config, name):
        return replace(_settings(config, owner), name=name, optimizer=None, lora=None, shares=owner)
    model = {"path": _path(config, name), "dtype": role.dtype}
    head = role.head or default_head(name)
    label = label_of(name, role.placement, config.placement)
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


def _lora(config: RunConfig, role: RoleConfig) -> LoraConfig | None:
    if role.lora == "none":
        return None
    return role.lora or config.lora


def _path(config: RunConfig, name: str) -> str | None:
    """Of the weights that a role starts from; None takes model.path."""
    path = config.roles.get(name, RoleConfig()).path
    first = {**_FIRST_OF, PRM: ACTOR}.get(name)
    return _path(config, first) if path is None and first is not None else path


def _shares(config: RunConfig, name: str) -> bool:
    """Whether a reference is its owner as it was: nothing makes it another model, or puts it
    elsewhere."""
    role = config.roles.get(name, RoleConfig())
    own = (role.path, role.dtype, role.parallel, role.placement)
    return (
        own == (None,) * len(own) and name not in config.placement and not is_trained(config, name)
    )


def default_head(name: str) -> Head:
    """The head that goes with a role's name."""
    return _HEADS.get(name, "language_model")


def is_trained(config: RunConfig, name: str) -> bool:
    """Whether a role has an optimizer."""
    chosen = config.roles.get(name, RoleConfig()).trainable
    return _trained_by_recipe(config, name) if chosen is None else chosen


def _trained_by_recipe(config: RunConfig, name: str) -> bool:
    return name in _TRAINED or config.recipe == "reward_model"
