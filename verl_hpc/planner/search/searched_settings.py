"""Settings that a search chooses, so that users cannot give them as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_hpc.config.run import RunConfig
from verl_hpc.config.tree import parse_override
from verl_hpc.errors import ConfigError

_KEPT = ("recompute", "recompute_modules", "context_parallel")
"""Layout settings that a search takes from the configuration."""


def refuse_searched(config: RunConfig, words: Sequence[str], option: str) -> None:
    """Refuse overrides that a search would put its own choice in place of.

    Args:
        config: of the run, with the overrides.
        words: `a.b=value`, as the command line has them.
        option: that asks for the search, for errors.

    Raises:
        ConfigError: one of them is a placement, a size of a layout, or rollout.tensor_parallel.
    """
    for word in words:
        for name, value in _values(*parse_override(word)):
            if value is not None and _is_searched(config, name.split(".")):
                raise ConfigError(
                    f"{option} with {name} = {value}: a search chooses that itself, as it does all "
                    "of placement, every layout but its recompute, recompute_modules and "
                    "context_parallel, and "
                    f"rollout.tensor_parallel; leave {word} out, or {option}"
                )


def _values(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a section by its dotted name."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, below in value.items():
        yield from _values(f"{name}.{key}", below)


def _is_searched(config: RunConfig, path: Sequence[str]) -> bool:
    if path[0] == "roles":
        path = path[2:]
    if path[:1] == ["parallel"]:
        return path[-1] not in _KEPT
    if path[:2] == ["rollout", "tensor_parallel"]:
        # Where evaluations alone generate, their engines are as the configuration has them.
        return config.samples_to_train
    return path[:1] == ["placement"]
