"""Environments by name, or from a user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.environments.calculator import Calculator
from verl_hpc.environments.environment import Environment
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_class, loading

BUILT_IN: Mapping[str, type[Environment]] = {"calculator": Calculator}


def environment_of(config: EnvironmentConfig) -> Callable[[], Environment]:
    """What makes the environment of a response.

    Raises:
        ConfigError: no such file or class, or a class that does not take the options.
    """
    setting, limit = "rollout.environment.name", config.import_timeout_s
    kind = BUILT_IN.get(config.name) or load_class(
        config.name, Environment, limit, setting, ConfigError
    )
    make = partial(kind, **config.options)
    failure = f"{setting} = {config.name} with rollout.environment.options = {config.options}"
    with loading(failure, config.timeout_s, ConfigError):
        make()
    return make
