"""Opening a file of rows by its format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

from verl_hpc.data.row_files import CsvRows, JsonlRows, RemoteFile, RowFile
from verl_hpc.errors import DataError

FORMATS = ("parquet", "jsonl")
"""Formats of data sets; public data sets are also published as CSV (`open_rows`)."""


def open_rows(
    path: Path,
    needed: Sequence[str] = (),
    optional: Iterable[str] | None = None,
    formats: Sequence[str] = FORMATS,
) -> RowFile:
    """Open one file by its ending, which must be one of `formats`.

    Raises:
        DataError: for the reasons of `open_format`, or another ending.
    """
    kind = path.suffix.removeprefix(".")
    with _reading(path):
        is_wrong = kind not in formats and path.is_file()
    if is_wrong:
        *others, last = (f".{name}" for name in formats)
        endings = f"{', '.join(others)} or {last}"
        raise DataError(f"{path}: the ending says the format; it must be {endings}")
    return open_format(str(path), kind, needed, optional)


def files_of(path: str, kind: str, options: dict[str, Any] | None = None) -> list[str]:
    """Return the files that a path or an address stands for, in order: itself; or those of a
    directory with the ending of `kind`; or those that match a pattern with `*`. The address of a
    directory ends with a slash.

    Args:
        options: options of the file system of an address.

    Raises:
        DataError: none matches, or the address cannot be asked.
    """
    is_remote = "://" in path
    is_directory = path.endswith("/") if is_remote else Path(path).is_dir()
    if not is_directory and "*" not in path:
        return [path]
    pattern = f"{path.rstrip('/')}/*.{kind}" if is_directory else path
    remote = RemoteFile(path, options)
    files = remote.matching(pattern) if is_remote else sorted(glob(pattern))  # noqa: PTH207
    if not files:
        raise DataError(f"{path}: no file matches {pattern}; check the path and file_format")
    return files


@contextmanager
def _reading(path: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check the data set") from None


def open_format(
    path: str,
    kind: str,
    needed: Sequence[str],
    optional: Iterable[str] | None,
    scratch: Path = Path(),
    options: dict[str, Any] | None = None,
) -> RowFile:
    """Open the rows of a file in a given format, local or behind a URL.

    Remote Parquet is read by its footer and, on demand, row groups; remote JSONL is copied whole,
    since its lines have no index.

    Args:
        path: the file, or its address.
        kind: parquet, jsonl or csv.
        needed: columns that Parquet must have.
        optional: columns that are read if Parquet has them; None reads all.
        scratch: directory for copies.
        options: options of the file system of an address.

    Raises:
        DataError: it is not there, malformed, or without a needed column.
    """
    source: Path | RemoteFile = RemoteFile(path, options) if "://" in path else Path(path)
    with _reading(path):
        if isinstance(source, Path):
            if not source.is_file():
                raise DataError(f"{path}: no such file; check the paths of the data set")
            source.open("rb").close()
        if kind == "parquet":
            from verl_hpc.data.parquet import ParquetRows  # pyarrow takes long to import

            return ParquetRows(source, needed, optional)
        local = source if isinstance(source, Path) else source.copied_to(scratch)
        return JsonlRows(local) if kind == "jsonl" else CsvRows(local)
