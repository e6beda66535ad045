"""From YAML files and dotted overrides to a checked `RunConfig`, and back."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from verl_hpc.config.algorithm import GaeConfig, GrpoConfig
from verl_hpc.config.data import FilesConfig, ReasoningGymConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError

INCLUDE = "include"
"""Key of a list of files, relative to the one that names them, that are merged in below it."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML file, apply `a.b=value` overrides, check everything.

    Raises:
        ConfigError: a file that cannot be read, a name that does not exist (the nearest ones are
            given), or a value that is not allowed.
    """
    tree = read_tree(Path(path))
    for word in overrides:
        _override(tree, word)
    return parse_config(tree, str(path))


def parse_config(tree: Mapping[str, Any], origin: str = "config") -> RunConfig:
    """Check a tree of plain values.

    Raises:
        ConfigError: as `load_config`.
    """
    try:
        return RunConfig.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError(f"{origin}:\n" + "\n".join(_readable(error))) from None


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML; `load_config` of it gives the same run."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


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


def _override(tree: dict[str, Any], word: str) -> None:
    name, separator, text = word.partition("=")
    if not separator or not name:
        raise ConfigError(f"override {word!r}: expected section.field=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {word!r}: the value is not valid YAML") from None
    *path, field = name.split(".")
    for key in path:
        node = tree.setdefault(key, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {word!r}: {key} is a value, not a section")
        tree = node
    tree[field] = value


def _readable(error: ValidationError) -> list[str]:
    return [f"  {_explain(detail)}" for detail in error.errors()]


def _explain(detail: Mapping[str, Any]) -> str:
    location = detail["loc"]
    name = ".".join(map(str, location)) or "run"
    if detail["type"] == "extra_forbidden":
        known = _fields_beside(location)
        near = difflib.get_close_matches(str(location[-1]), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        return f"{name}: no such setting; {hint}"
    if detail["type"] == "missing":
        return f"{name}: is needed and not given"
    message = detail["msg"].removeprefix("Value error, ")
    if isinstance(detail["input"], BaseModel | Mapping):
        return f"{name}: {message}"
    return f"{name} = {detail['input']!r}: {message}"


def _fields_beside(location: Sequence[str | int]) -> list[str]:
    """Names of the settings that stand beside a misspelt one."""
    model: type[BaseModel] = RunConfig
    tagged = dict(_TAGGED)
    for key in location[:-1]:
        if key in model.model_fields:
            options = _models_in(model.model_fields[str(key)].annotation)
            model = options[0] if options else model
        else:
            model = tagged.get(str(key), model)
    return sorted(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


_TAGGED: tuple[tuple[str, type[BaseModel]], ...] = (
    ("gae", GaeConfig),
    ("grpo", GrpoConfig),
    ("files", FilesConfig),
    ("reasoning_gym", ReasoningGymConfig),
)
"""Members of discriminated unions; pydantic puts their tag into an error's location."""
