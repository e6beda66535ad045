"""Rows of a user's class as a file in the run directory, which ranks and later starts read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from verl_hpc.config.data import FilesConfig, OwnSourceConfig
from verl_hpc.config.explain import shown
from verl_hpc.config.regular_file import make_directory, replace_file
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import DataError
from verl_hpc.rewards.user_code import load_function
from verl_hpc.sources.local import put_settings


def own_sources(config: RunConfig) -> dict[str, OwnSourceConfig]:
    """The data sets of a run that classes of the user give, by their setting."""
    return {n: s for n, s in config.sources.items() if isinstance(s, OwnSourceConfig)}


def as_files(config: RunConfig) -> RunConfig:
    """Return the run with the files of `write_rows` in place of the user's classes."""
    files = {name: rows_file(config, source) for name, source in own_sources(config).items()}
    return put_settings(config, {n: FilesConfig(paths=[str(file)]) for n, file in files.items()})


def rows_file(config: RunConfig, source: OwnSourceConfig) -> Path:
    """Where the rows of a user's class are: one file for equal settings, another one for others."""
    digest = sha256(source.model_dump_json().encode()).hexdigest()[:8]
    return config.run_directory / "rows" / f"{source.path.rpartition(':')[2]}-{digest}.jsonl"


def write_rows(config: RunConfig, anew: bool) -> None:
    """Write the rows of each class; one rank does so.

    Args:
        anew: also where there are rows of an earlier start. A run that goes on from a checkpoint
            reads the rows that it had, whatever the class would give now.

    Raises:
        DataError: a class cannot be used, gives no rows, or fails in the middle; no file is left.
    """
    written = set[Path]()
    for setting, source in own_sources(config).items():
        target = rows_file(config, source)
        if target in written or (target.exists() and not anew):
            continue
        lines = _lines(setting, source, config.reward.import_timeout_s)
        try:
            make_directory(target.parent)
            replace_file(target, lines, durable=True).close()
        except OSError as error:
            raise DataError(f"{setting}: cannot write its rows to {target} ({error})") from None
        written.add(target)


def _lines(setting: str, source: OwnSourceConfig, timeout_s: float) -> Iterator[str]:
    name = f"{setting}.path = {source.path}"
    make = load_function(source.path, timeout_s, f"{setting}.path", DataError)
    done = 0
    try:
        rows = make().rows()
        if not isinstance(rows, Iterable):
            raise TypeError(f"rows() gave {shown(rows)}; expected an iterator of rows")
        for row in islice(rows, source.limit):
            yield _line(row)
            done += 1
    except Exception as error:  # it is the user's code
        why = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{name}: fails behind {done} rows ({why}); mend it and start the run again, which "
            "reads it from its first row"
        ) from error
    if not done:
        raise DataError(f"{name}: rows() gave none; give a source that has some")


def _line(row: Any) -> str:
    if not isinstance(row, Mapping):
        raise TypeError(f"{shown(row)}; expected a mapping with verl's columns")
    return json.dumps(dict(row), allow_nan=False) + "\n"
