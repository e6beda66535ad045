"""Settings as plain trees: YAML files with includes, and dotted overrides over them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from verl_hpc.config.explain import shown
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.config.replaced import drop_replaced
from verl_hpc.errors import ConfigError

INCLUDE = "include"
"""Key of a list of files, relative to the one that names them, that are merged in below it."""


def read_tree(path: Path, model: type[BaseModel] | None = None) -> dict[str, Any]:
    """A YAML file with its includes merged in, later ones over earlier, itself over all.

    A file that chooses another variant than a file it includes, such as another loss, drops that
    file's settings of the replaced variant.

    Args:
        model: the model of the settings, which knows their variants; None if they have none.

    Raises:
        ConfigError: missing or malformed files, and files that include each other in a circle.
    """
    return _read_tree(path, model, ())


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted name."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_tree(
    path: Path, model: type[BaseModel] | None, chain: tuple[Path, ...]
) -> dict[str, Any]:
    """Read a file and those that it includes.

    Args:
        chain: the files that include each other down to this one.
    """
    try:
        resolved = path.resolve()
        if resolved in chain:
            circle = " -> ".join(p.name for p in (*chain, resolved))
            raise ConfigError(f"{INCLUDE}: files include each other in a circle: {circle}")
        text = _read(resolved)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the path of a run's YAML file") from None
    except (ValueError, RuntimeError) as error:  # a NUL in the path, a loop of links
        raise ConfigError(f"{shown(str(path))}: not a path that can be read: {error}") from None
    try:
        tree = read_yaml(text.decode())
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        kind = {type(None): "nothing", list: "a list", str: "text"}.get(type(tree), shown(tree))
        raise ConfigError(f"{path}: expected settings as `name: value`, found {kind}")
    merged: dict[str, Any] = {}
    for name in _includes(path, tree.pop(INCLUDE, None)):
        included = _read_tree(path.parent / name, model, (*chain, resolved))
        _merge(merged, included, model, f"what {path} includes")
    _merge(merged, tree, model, f"what {path} includes")
    return merged


def _read(path: Path) -> bytes:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path}: not a file, and reading it may never end; copy it into one")
    return path.read_bytes()


def _includes(path: Path, names: Any) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: {INCLUDE} = {shown(names)}: expected a list of files")
    return names


def _merge(
    below: dict[str, Any], above: Mapping[str, Any], model: type[BaseModel] | None, origin: str
) -> None:
    if model is not None:
        drop_replaced(below, above, model, origin)
    _put_over(below, above)


def _put_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        # An empty section takes away what is there.
        if value and isinstance(value, Mapping) and isinstance(below.get(key), dict):
            _put_over(below[key], value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value


def parse_override(word: str, prefix: str = "") -> tuple[str, Any]:
    """`PREFIXa.b=value` as a dotted name below the prefix, and a value.

    Raises:
        ConfigError: it has no `=` or no name, or its value is not YAML.
    """
    name, separator, text = word.removeprefix(prefix).partition("=")
    if not separator or not name:
        raise ConfigError(f"override {shown(word)}: expected {prefix or 'section.'}field=value")
    try:
        return name, read_yaml(text)
    except ValueError as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(
            f"override {shown(word)}: the value is not valid YAML: {problem}"
        ) from None


def override(
    tree: dict[str, Any], values: Iterable[tuple[str, Any]], model: type[BaseModel], origin: str
) -> None:
    """Set values by their dotted names, in their order, over a file's.

    A value that chooses another variant drops the file's settings of the replaced one. Values given
    for the new variant stay, before or after its choice. If a variant is chosen twice, the last
    choice counts and drops what was given for the first.

    Args:
        model: the model of the tree, which knows its variants.
        origin: where the tree comes from, for the log.

    Raises:
        ConfigError: as `put`.
    """
    given: dict[str, Any] = {}
    values = list(values)
    for name, value in values:
        put(given, name, copy.deepcopy(value))
    # First, a variant chosen anywhere on the command line drops the file's settings of another.
    drop_replaced(tree, given, model, origin)
    # Then values are set in order; a variant chosen a second time drops what the first was given.
    before: dict[str, Any] = {}
    for name, value in values:
        if _has(before, name):
            again: dict[str, Any] = {}
            put(again, name, value)
            for dropped in drop_replaced(before, again, model, "the command line"):
                _remove(tree, dropped)
        put(before, name, copy.deepcopy(value))
        put(tree, name, value)


def _remove(tree: dict[str, Any], name: str) -> None:
    """Take a value away that is there."""
    *sections, field = name.split(".")
    for section in sections:
        tree = tree[section]
    del tree[field]


def _has(tree: Any, name: str) -> bool:
    """Whether a tree has a value, or a section, by this dotted name."""
    for part in name.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set one value by its dotted name, making sections on the way.

    A section is merged with the one that is there, setting by setting, as that of a file is.

    Raises:
        ConfigError: a section of the name is a value.
    """
    *sections, field = name.split(".")
    for section in sections:
        node = tree.setdefault(section, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {name}: {section} is a value, not a section")
        tree = node
    _put_over(tree, {field: value})
