"""Reading a site profile, and remembering which of its values came from where."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from verl_hpc.cluster.containers import KINDS
from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, SITE
from verl_hpc.cluster.site import PreflightConfig, RestartConfig, Site
from verl_hpc.config.load import read_tree
from verl_hpc.errors import ConfigError

PREFIX = "site."
"""Starts the overrides of a command line that are meant for the profile."""
_SECTIONS: Mapping[str | int, type[BaseModel]] = {
    "preflight": PreflightConfig,
    "restarts": RestartConfig,
}


@dataclass(frozen=True)
class Profile:
    """A site, its file, and the names that the command line has changed."""

    site: Site
    path: str
    overridden: frozenset[str] = frozenset()

    def origin(self, name: str) -> str:
        """Who gave a field, or `environment.NAME`, its value."""
        if any(name == o or name.startswith(f"{o}.") for o in self.overridden):
            return COMMAND_LINE
        section, _, field = name.partition(".")
        model: BaseModel = self.site
        if field and isinstance(nested := getattr(self.site, section), BaseModel):
            model, section = nested, field
        return SITE if section in model.model_fields_set else DEFAULT


def load_profile(path: str | Path, overrides: Mapping[str, Any]) -> Profile:
    """Read a profile and put `overrides`, values by dotted name, over it.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), or a value that is not allowed.
    """
    if not Path(path).is_file():
        here = ", ".join(sorted(map(str, Path("slurm").glob("*.yaml")))) or "none below slurm/"
        raise ConfigError(f"--cluster {path}: no such file; profiles here: {here}")
    tree = read_tree(Path(path))
    for name, value in overrides.items():
        _put(tree, name.split("."), value)
    try:
        site = Site.model_validate(tree)
    except ValidationError as error:
        lines = [f"  {_explain(detail)}" for detail in error.errors()]
        raise ConfigError(f"--cluster {path}:\n" + "\n".join(lines)) from None
    return Profile(site, str(path), frozenset(overrides))


def parse_override(word: str) -> tuple[str, Any]:
    """`site.container.image=x.sif` as a name below the profile, and a value.

    Raises:
        ConfigError: it has no `=`, or its value is not YAML.
    """
    name, separator, text = word.removeprefix(PREFIX).partition("=")
    if not separator or not name:
        raise ConfigError(f"override {word!r}: expected {PREFIX}field=value")
    try:
        return name, yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {word!r}: the value is not valid YAML") from None


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *sections, field = path
    for key in sections:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"override {'.'.join(path)}: {key} is a value, not a section")
    tree[field] = value


def _explain(detail: Mapping[str, Any]) -> str:
    location = [part for part in detail["loc"] if part not in KINDS]
    name = ".".join(map(str, location)) or "profile"
    if detail["type"] == "extra_forbidden":
        known = _fields_beside(detail["loc"])
        near = difflib.get_close_matches(str(location[-1]), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        return f"{name}: no such setting; {hint}"
    if detail["type"] == "missing":
        return f"{name}: is needed and not given"
    message = detail["msg"].removeprefix("Value error, ")
    if isinstance(detail["input"], BaseModel | Mapping):
        return f"{name}: {message}" if location else message
    return f"{name} = {detail['input']!r}: {message}"


def _fields_beside(location: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = Site
    if location[0] in _SECTIONS:
        model = _SECTIONS[str(location[0])]
    elif location[0] == "container" and len(location) > 1:
        model = KINDS[str(location[1])]
    return sorted(model.model_fields)
