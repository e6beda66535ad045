"""Write the result of a search as a configuration that includes the original one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hpc.cli.output import write_file
from verl_hpc.config.load import load_config
from verl_hpc.config.model import ParallelConfig
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tree import INCLUDE, parse_override, put
from verl_hpc.errors import ConfigError
from verl_hpc.planner.plan import Plan


def write_found(
    config: Path, target: Path, plan: Plan, made_by: str, words: Sequence[str] = ()
) -> None:
    """Write the configuration of a plan that a search found.

    Args:
        config: the original file.
        target: the file to write.
        plan: a plan with `found`.
        made_by: the command, for the record.
        words: overrides of the command line.

    Raises:
        ConfigError: the file cannot be written, or cannot express what was found.
    """
    if target.exists() and target.samefile(config):
        raise ConfigError(f"--write {target}: that is --config itself; choose another file")
    base = load_config(config, words)
    tree: dict[str, Any] = {INCLUDE: [os.path.relpath(config.resolve(), target.resolve().parent)]}
    for word in words:
        put(tree, *parse_override(word))
    assert plan.found is not None
    for name, value in plan.found.overrides.items():
        put(tree, name, _whole(base, name, value))
    text = plan.record(made_by).header() + write_yaml(tree)
    write_file("--write", target, text)
    if load_config(target).model_dump() != plan.config.model_dump():
        target.unlink()
        raise ConfigError(
            f"--write {target}: {config} has labels in its placement that a file which includes "
            "it cannot take away; remove placement from it"
        )


def _whole(base: RunConfig, name: str, value: object) -> object:
    """Return a section, with defaults for all that the included file sets in it."""
    *sections, last = name.split(".")
    if last != "parallel" or not isinstance(value, Mapping):
        return value
    parent = base.roles.get(sections[-1]) if sections else base
    before: ParallelConfig | None = getattr(parent, "parallel", None)
    known = () if before is None else sorted(before.model_fields_set)
    return {field: ParallelConfig.model_fields[field].default for field in known} | dict(value)
