"""Data sets behind URLs, such as s3://bucket/rows.parquet, by way of fsspec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.data.jsonl import JsonlRows
from verl_hpc.errors import DataError

if TYPE_CHECKING:
    from verl_hpc.data.files import Rows

FORMATS = ("parquet", "jsonl")


class RemoteFile:
    """A file that fsspec opens; as much of `Path` as readers of rows need.

    Args:
        url: with its protocol: s3, gs, http, memory, ...
        options: of the protocol's file system, such as {"endpoint_url": ...}.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url, self.options = url, options or {}

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> Any:
        """The file, which reads what it is asked for.

        Raises:
            DataError: a package for the protocol is missing, or it cannot be read.
        """
        import fsspec

        try:
            return fsspec.open(self.url, mode, **self.options).open()
        except (ImportError, ValueError) as error:
            raise DataError(
                f"{self.url}: {error}; s3:// needs the package s3fs, gs:// gcsfs, and http:// "
                "aiohttp"
            ) from None
        except Exception as error:  # each store's client has errors of its own
            raise DataError(
                f"{self.url}: cannot be read ({type(error).__name__}: {error}); check the address, "
                "storage_options and the credentials"
            ) from error

    def copied_to(self, directory: Path) -> Path:
        """A copy of the whole file in a directory."""
        target = directory / Path(self.url).name
        with self.open() as source, target.open("wb") as file:
            while chunk := source.read(2**20):
                file.write(chunk)
        return target


def open_format(
    path: str,
    file_format: str,
    needed: list[str],
    optional: tuple[str, ...],
    scratch: Path,
    options: dict[str, Any] | None = None,
) -> Rows:
    """Rows of a file of a given format, here or behind a URL.

    Of remote Parquet the footer is read, and row groups when they are asked for; remote JSONL is
    copied whole, since its lines have no index.

    Args:
        needed: columns that have to be there (of Parquet).
        optional: columns that are read where they are there.
        scratch: where copies go.
        options: of the file system.

    Raises:
        DataError: another format, or a file that cannot be read.
    """
    from verl_hpc.data.parquet import ParquetRows

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
