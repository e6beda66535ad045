"""Settings as plain trees: YAML files with includes, and dotted overrides over them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_hpc.errors import ConfigError

INCLUDE = "include"
"""Key of a list of files, relative to the one that names them, that are merged in below it."""


def read_tree(path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML file with its includes merged in, later ones over earlier, itself over all.

    Raises:
        ConfigError: missing or malformed files, and files that include each other in a circle.
    """
    resolved = path.resolve()
    if resolved in chain:
        circle = " -> ".join(p.name for p in (*chain, resolved))
        raise ConfigError(f"{INCLUDE}: files include each other in a circle: {circle}")
    try:
        tree = yaml.safe_load(resolved.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the path of a run's YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, found {type(tree).__name__}")
    merged: dict[str, Any] = {}
    for name in tree.pop(INCLUDE, None) or []:
        _merge(merged, read_tree(path.parent / name, (*chain, resolved)))
    _merge(merged, tree)
    return merged


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            _merge(below[key], value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value


def parse_override(word: str, prefix: str = "") -> tuple[str, Any]:
    """`PREFIXa.b=value` as a dotted name below the prefix, and a value.

    Raises:
        ConfigError: it has no `=` or no name, or its value is not YAML.
    """
    name, separator, text = word.removeprefix(prefix).partition("=")
    if not separator or not name:
        raise ConfigError(f"override {word!r}: expected {prefix or 'section.'}field=value")
    try:
        return name, yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {word!r}: the value is not valid YAML") from None


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set one value by its dotted name, making sections on the way.

    Raises:
        ConfigError: a section of the name is a value.
    """
    *sections, field = name.split(".")
    for section in sections:
        node = tree.setdefault(section, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {name}: {section} is a value, not a section")
        tree = node
    tree[field] = value
