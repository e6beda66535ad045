"""Load a checked `RunConfig` from YAML files and dotted overrides, and write it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from verl_hpc.config.explain import explain
from verl_hpc.config.foreign import MIGRATE, is_foreign
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tree import override, parse_override, read_tree
from verl_hpc.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML file, apply `a.b=value` overrides, check everything.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), a value that is not allowed, or a file with verl's keys.
    """
    tree = read_tree(Path(path), RunConfig)
    if is_foreign(tree):
        raise ConfigError(
            f"{path} has verl's keys, or those of its tutorials; write it in ours with\n"
            f"  {MIGRATE} {path} > run.yaml\n"
            "which every command takes (`train` takes verl's keys, too)"
        )
    return parse_overridden(tree, overrides, str(path))


def parse_overridden(tree: dict[str, Any], overrides: Sequence[str], origin: str) -> RunConfig:
    """Put `a.b=value` overrides into a tree of plain values, and check it.

    Raises:
        ConfigError: as `load_config`.
    """
    override(tree, map(parse_override, overrides), RunConfig, origin)
    return parse_config(tree, origin)


def parse_config(tree: Mapping[str, Any], origin: str = "config") -> RunConfig:
    """Check a tree of plain values.

    Raises:
        ConfigError: as `load_config`.
    """
    try:
        return RunConfig.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError(f"{origin}:\n" + explain(error, RunConfig)) from None


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML; `load_config` of it gives the same run."""
    return write_yaml(config.model_dump(mode="json"))
