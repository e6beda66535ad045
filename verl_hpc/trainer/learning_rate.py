"""Default decay steps of learning-rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from verl_hpc.config.model import OptimizerConfig
from verl_hpc.config.role import ACTOR, CRITIC
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError


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
        _check_warm_up(name, optimizer, decay_steps)
        updated[name] = replace(
            role, optimizer=optimizer.model_copy(update={"decay_steps": decay_steps})
        )
    return updated


def _check_warm_up(name: str, optimizer: OptimizerConfig, decay_steps: int) -> None:
    if decay_steps <= optimizer.warmup_steps:
        raise ConfigError(
            f"optimizer of {name}: warmup_steps = {optimizer.warmup_steps} with schedule: "
            f"{optimizer.schedule}, and it takes {decay_steps} optimizer steps in the whole run; "
            "choose fewer, or schedule: constant"
        )
