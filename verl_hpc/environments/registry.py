"""Environments by name, or from a user's file."""

from __future__ import annotations

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.environments.environment import Environment
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_class, loading
from verl_hpc.section import is_own


def environment_of(config: EnvironmentConfig) -> Environment:
    """Make the environment from which those of responses are copied.

    Raises:
        ConfigError: no such file or class, or a class that does not take the options, or not
            within import_timeout_s.
    """
    setting, limit = "rollout.environment.name", config.import_timeout_s
    if is_own(config.name):
        kind = load_class(config.name, Environment, limit, setting, ConfigError)
    else:
        kind = _built_in(config.name)
    failure = f"{setting} = {config.name} with rollout.environment.options = {config.options}"
    with loading(failure, limit, ConfigError):
        return kind(**config.options)


def _built_in(name: str) -> type[Environment]:
    # Each brings what the others do not need.
    if name == "python":
        from verl_hpc.environments.python import Python

        return Python
    if name == "reasoning_gym":
        from verl_hpc.environments.reasoning_gym import ReasoningGym

        return ReasoningGym
    from verl_hpc.environments.calculator import Calculator

    return Calculator
