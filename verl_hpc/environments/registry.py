"""Environments by name, or from a user's file."""

from __future__ import annotations

import importlib

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.environments.environment import Environment
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_class, loading
from verl_hpc.section import is_own

_CLASSES = {"calculator": "Calculator", "python": "Python", "reasoning_gym": "ReasoningGym"}
"""The class in the module of each name."""


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
        # Each brings what the others do not need.
        module = importlib.import_module(f"verl_hpc.environments.{config.name}")
        kind = getattr(module, _CLASSES[config.name])
    failure = f"{setting} = {config.name} with rollout.environment.options = {config.options}"
    with loading(failure, limit, ConfigError):
        return kind(**config.options)
