"""Reading a site profile, and remembering which of its values came from where."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, SITE, Setting, parse_option
from verl_hpc.cluster.site import Site
from verl_hpc.config.explain import explain
from verl_hpc.config.tree import override, parse_override, read_tree
from verl_hpc.errors import ConfigError

PREFIX = "site."
"""Starts the overrides of a command line that are meant for the profile."""


FROM_ENVIRONMENT = {
    "account": "SBATCH_ACCOUNT",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
}
"""Fields that nobody has given are these variables, which users set once for all their jobs."""


@dataclass(frozen=True)
class Profile:
    """A site, its file, and what did not come from it."""

    site: Site
    path: str
    given: Mapping[str, str] = field(default_factory=dict)
    """Who gave a field its value, by dotted name, where it was not the file."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """How many items of a list are the file's, where the command line has added others."""

    def origin(self, name: str) -> str:
        """Who gave a field, or `environment.NAME`, its value."""
        for given, origin in self.given.items():
            if name == given or name.startswith(f"{given}."):
                return origin
        section, _, inner = name.partition(".")
        model: BaseModel = self.site
        if inner and isinstance(nested := getattr(self.site, section), BaseModel):
            model, section = nested, inner
        return SITE if section in model.model_fields_set else DEFAULT

    def options(self, name: str) -> list[Setting]:
        """The options of a list such as `srun_args`, each with who gave it."""
        words: list[str] = getattr(self.site, name)
        kept = self.kept.get(name, 0)
        origins = [SITE] * kept + [self.origin(name)] * (len(words) - kept)
        return [parse_option(word, origin) for word, origin in zip(words, origins, strict=True)]


def load_profile(
    path: str | Path, overrides: Iterable[tuple[str, Any]] = (), flag: str = "--cluster"
) -> Profile:
    """Read a profile and put `overrides`, dotted names with their values, over it.

    A list adds to the list that is there, and an empty one takes that away.

    Args:
        flag: that gave the path, for errors.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), or a value that is not allowed.
    """
    try:
        is_file, is_directory = Path(path).is_file(), Path(path).is_dir()
    except OSError:  # a name that is too long
        is_file = is_directory = False
    if not is_file:
        here = ", ".join(sorted(map(str, Path("slurm").rglob("*.yaml")))) or "none below slurm/"
        problem = "is a directory" if is_directory else "no such file"
        raise ConfigError(f"{flag} {path}: {problem}; profiles here: {here}")
    tree = read_tree(Path(path), Site)
    if isinstance(measured := tree.get("measured"), str):
        tree["measured"] = str(Path(path).resolve().parent / measured)
    overrides = list(overrides)
    kept = _add_lists(tree, overrides)
    override(tree, overrides, Site, str(path))
    try:
        site = Site.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{flag} {path}:\n" + explain(error, Site)) from None
    return Profile(site, str(path), {name: COMMAND_LINE for name, _ in overrides}, kept)


def load_for_job(
    path: str | Path,
    words: Iterable[str],
    flags: Mapping[str, Any],
    directives: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Profile:
    """Read a profile for a job that a command line asks for.

    Args:
        words: the command line's settings of the profile, such as site.python=python3.
        flags: values of its options that are fields of the profile, by dotted name.
        directives: options of sbatch to add, with or without their dashes.
        environ: the submitter's, asked for an account, a partition and a quality of service that
            neither the file nor the command line names.

    Raises:
        ConfigError: as `load_profile`.
    """
    overrides = [*map(parse_site_override, words), *flags.items()]
    added = [word if word.startswith("--") else f"--{word}" for word in directives]
    if added:
        overrides.append(("extra_directives", added))
    profile = load_profile(path, overrides)
    given = {
        name: environ[variable]
        for name, variable in FROM_ENVIRONMENT.items()
        if getattr(profile.site, name) is None and environ.get(variable)
    }
    if not given:
        return profile
    asked = load_profile(path, [*overrides, *given.items()])
    return replace(asked, given={**asked.given, **{n: FROM_ENVIRONMENT[n] for n in given}})


def _add_lists(tree: Mapping[str, Any], overrides: list[tuple[str, Any]]) -> dict[str, int]:
    """Put the items that are there before those that are given; return how many the file has."""
    kept: dict[str, int] = {}
    lists: dict[str, list[Any]] = {}
    new_container = any(name == "container.kind" for name, _ in overrides)
    for index, (name, value) in enumerate(overrides):
        if not isinstance(value, list) or (new_container and name.startswith("container.")):
            continue
        if name not in lists:
            before: Any = tree
            for part in name.split("."):
                before = before.get(part) if isinstance(before, Mapping) else None
            lists[name] = list(before) if isinstance(before, list) else []
            kept[name] = len(lists[name])
        lists[name] = [*lists[name], *value] if value else []
        kept[name] = kept[name] if value else 0
        overrides[index] = name, lists[name]
    return kept


def parse_site_override(word: str) -> tuple[str, Any]:
    """`site.container.image=x.sif` as a name below the profile, and a value.

    Raises:
        ConfigError: it has no `=`, or its value is not YAML.
    """
    return parse_override(word, PREFIX)
