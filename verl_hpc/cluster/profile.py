"""Reading a site profile, and remembering which of its values came from where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, SITE
from verl_hpc.cluster.site import Site
from verl_hpc.config.explain import explain
from verl_hpc.config.tree import override, parse_override, read_tree
from verl_hpc.errors import ConfigError

PREFIX = "site."
"""Starts the overrides of a command line that are meant for the profile."""


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


def load_profile(
    path: str | Path, overrides: Mapping[str, Any], flag: str = "--cluster"
) -> Profile:
    """Read a profile and put `overrides`, values by dotted name, over it.

    Args:
        flag: that gave the path, for errors.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), or a value that is not allowed.
    """
    try:
        found, is_directory = Path(path).is_file(), Path(path).is_dir()
    except OSError:  # a name that is too long
        found = is_directory = False
    if not found:
        here = ", ".join(sorted(map(str, Path("slurm").glob("*.yaml")))) or "none below slurm/"
        problem = "is a directory" if is_directory else "no such file"
        raise ConfigError(f"{flag} {path}: {problem}; profiles here: {here}")
    tree = read_tree(Path(path), Site)
    if isinstance(measured := tree.get("measured"), str):
        tree["measured"] = str(Path(path).resolve().parent / measured)
    override(tree, overrides.items(), Site, str(path))
    try:
        site = Site.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{flag} {path}:\n" + explain(error, Site)) from None
    return Profile(site, str(path), frozenset(overrides))


def parse_site_override(word: str) -> tuple[str, Any]:
    """`site.container.image=x.sif` as a name below the profile, and a value.

    Raises:
        ConfigError: it has no `=`, or its value is not YAML.
    """
    return parse_override(word, PREFIX)
