"""Open files of rows in a given format, local or behind a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl_hpc.data.jsonl import JsonlRows
from verl_hpc.data.parquet import ParquetRows
from verl_hpc.data.remote import RemoteFile
from verl_hpc.data.row_file import RowFile
from verl_hpc.errors import DataError

FORMATS = ("parquet", "jsonl")


def open_format(
    path: str,
    file_format: str,
    needed: list[str],
    optional: tuple[str, ...],
    scratch: Path,
    options: dict[str, Any] | None = None,
) -> RowFile:
    """Open the rows of a file in a given format, local or behind a URL.

    Remote Parquet is read by its footer and, on demand, row groups; remote JSONL is copied whole,
    since its lines have no index.

    Args:
        needed: columns that Parquet must have.
        optional: columns that are read if Parquet has them.
        scratch: directory for copies.
        options: options of the file system.

    Raises:
        DataError: another format, or a file that cannot be read.
    """
    if file_format not in FORMATS:
        raise DataError(f"file_format = {file_format!r}; choose {' or '.join(FORMATS)}")
    is_remote = "://" in path
    if not is_remote and not Path(path).is_file():
        raise DataError(f"{path}: no such file; check data_path")
    try:
        if file_format == "jsonl":
            remote = RemoteFile(path, options)
            return JsonlRows(remote.copied_to(scratch) if is_remote else Path(path))
        source = RemoteFile(path, options) if is_remote else Path(path)
        return ParquetRows(source, needed, optional)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check data_path") from None
