"""Data sets behind URLs, such as s3://bucket/rows.parquet, by way of fsspec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl_hpc.errors import DataError


class RemoteFile:
    """A file that fsspec opens, with the part of `Path`'s interface that readers of rows need.

    Args:
        url: address with its protocol: s3, gs, http, memory, ...
        options: options of the protocol's file system, such as {"endpoint_url": ...}.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url, self.options = url, options or {}

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> Any:
        """Open the file, which is read only where it is asked for.

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
        """Copy the whole file to a directory, and return the path."""
        target = directory / Path(self.url).name
        with self.open() as source, target.open("wb") as file:
            while chunk := source.read(2**20):
                file.write(chunk)
        return target
