"""Explain the values of settings in a file, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from verl_hpc.config.load import load_config
from verl_hpc.config.tree import parse_override
from verl_hpc.planner.record import Record, read_record


def explained_values(path: str, words: Sequence[str], name: str, text: str) -> str:
    """Return the meaning of a setting or section, followed by its values in a file.

    Args:
        path: path of the file.
        words: overrides.
        name: name of the setting or section; a part of a name has no value.
        text: its meaning.

    Raises:
        ConfigError: for the reasons of `load_config`.
    """
    config = load_config(path, words)
    record = read_record(Path(path))
    given = [parse_override(word)[0] for word in words]
    rows = [
        f"{setting} = {value}   [{_origin(setting, is_set, given, record, path)}]"
        for setting, value, is_set in _leaves(config, "", True)
        if setting == name or setting.startswith(f"{name}.")
    ]
    if record is not None and any(record.covers(row.partition(" = ")[0]) for row in rows):
        rows.append(f"found by: {record.by}\nwhy: {record.why}")
    return "\n".join([text, *rows]) + "\n" if rows else text


def _origin(name: str, is_set: bool, given: Sequence[str], record: Record | None, path: str) -> str:
    if any(name == word or name.startswith(f"{word}.") for word in given):
        return "command line"
    if record is not None and record.covers(name):
        return "plan"
    return path if is_set else "default"


def _leaves(section: BaseModel, prefix: str, is_set: bool) -> Iterator[tuple[str, str, bool]]:
    """Yield names, values, and whether they were given."""
    for field in type(section).model_fields:
        value = getattr(section, field)
        given = is_set and field in section.model_fields_set
        items = {f"{prefix}{field}": value}
        if isinstance(value, dict) and value:
            items = {f"{prefix}{field}.{key}": item for key, item in value.items()}
        for name, item in items.items():
            if isinstance(item, BaseModel):
                yield from _leaves(item, f"{name}.", given)
            else:
                yield name, "null" if item is None else str(item), given
