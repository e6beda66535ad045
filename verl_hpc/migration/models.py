"""verl's models: the sections that they have, and which of them a run has."""

from __future__ import annotations

from collections.abc import Mapping

from verl_hpc.migration.values import Values

ACTOR, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
FSDP = {ACTOR: f"{ACTOR}.fsdp_config", REF: f"{REF}.fsdp_config", CRITIC: "critic.fsdp"}
"""Sections of the FSDP form, by model."""
MODEL = {ACTOR: "actor_rollout_ref.model", REF: "actor_rollout_ref.model", CRITIC: "critic.model"}
ROLE = {ACTOR: "", REF: "roles.reference.", CRITIC: "roles.critic."}
ROLLOUT = "actor_rollout_ref.rollout"
PROFILERS = tuple(f"{section}.profiler" for section in (ACTOR, REF, CRITIC, ROLLOUT))

_MODELS = {"actor": ACTOR, "ref": REF, "critic": CRITIC}
PLACES: Mapping[str, Mapping[str, str]] = {
    "model": _MODELS,
    "fsdp": {name: FSDP[model] for name, model in _MODELS.items()},
    "weights": {"actor": MODEL[ACTOR], "critic": MODEL[CRITIC]},
    "profiler": dict(zip((*_MODELS, "rollout"), PROFILERS, strict=True)),
    "role": {name: ROLE[model] for name, model in _MODELS.items()},
    "dtype": {name: f"{ROLE[model] or 'model.'}dtype" for name, model in _MODELS.items()},
}
"""What a name in angle brackets in the table is for each model."""


def has_critic(values: Values) -> bool:
    """Whether the run trains a critic."""
    return values["algorithm.adv_estimator"] == "gae"


def has_reference(values: Values) -> bool:
    """Whether the run has a reference."""
    return values["algorithm.use_kl_in_reward"] is True or values[f"{ACTOR}.use_kl_loss"] is True


def is_there(values: Values, model: str) -> bool:
    """Whether the run has a model."""
    return {ACTOR: True, REF: has_reference(values), CRITIC: has_critic(values)}[model]
