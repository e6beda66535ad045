"""Explain the values of settings in a file, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verl_hpc.config.load import load_config
from verl_hpc.config.settings import leaves
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
        f"{setting} = {'null' if value is None else value}   "
        f"[{_origin(setting, is_set, given, record, path)}]"
        for setting, value, is_set in leaves(config)
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
