"""Files that the paths of a data set name: directories, globs, and URLs that fsspec opens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from glob import glob, has_magic
from pathlib import Path
from typing import Any, TypeVar

from verl_hpc.config.data import FilesConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import DataError

T = TypeVar("T")

ENDINGS = (".parquet", ".jsonl")
WAITS_S = (1.0, 4.0, 15.0)
"""Seconds before a store that gave no answer is asked again."""
_IN_VAIN = (DataError, FileNotFoundError, PermissionError, TypeError, ValueError, ImportError)
"""Errors that asking again does not end."""
_PACKAGES = "s3:// needs the package s3fs, gs:// gcsfs, and http:// aiohttp"


def is_url(path: str) -> bool:
    """Whether fsspec opens a path."""
    return "://" in path


def list_files(
    path: str, options: Mapping[str, Any] | None = None, endings: tuple[str, ...] = ENDINGS
) -> list[str]:
    """Return the files that one of a data set's paths names, sorted by name.

    A directory has its files with one of the endings, none below it; a glob has what it matches,
    with ** at any depth; any other path is a file. So is an http:// address.

    Args:
        options: options of the file system of a URL.
        endings: endings of files that are taken from a directory.

    Raises:
        DataError: there is none, a directory has both kinds, or a store cannot be read.
    """
    try:
        files = _listed_in_store(path, options) if is_url(path) else _listed_here(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check the data set") from None
    return files if files == [path] else _rows_among(path, files, endings)


def _listed_here(path: str) -> list[str]:
    """All that a path names but directories: a link to nothing is an error when it is opened."""
    if Path(path).is_dir():
        return [str(file) for file in Path(path).iterdir() if not file.is_dir()]
    if not has_magic(path) or Path(path).exists():
        return [path]
    # Path.glob takes no absolute pattern.
    matches = glob(path, recursive=True)  # noqa: PTH207
    files = [file for file in matches if not Path(file).is_dir()]
    if not files:
        raise DataError(f"{path}: matches no file; correct the pattern of the data set")
    return files


def _rows_among(path: str, files: list[str], endings: tuple[str, ...]) -> list[str]:
    named = sorted(file for file in files if Path(file).name[0] not in "._")
    chosen = [file for file in named if file.endswith(endings)]
    if not chosen:
        raise DataError(f"{path}: has no file that ends in {' or '.join(endings)}")
    if len({Path(file).suffix for file in chosen}) > 1:
        raise DataError(
            f"{path}: has files of both {' and '.join(endings)}, which may be the same rows; name "
            f"one kind, such as {_parent(path)}/*{endings[0]}"
        )
    return chosen


def _parent(path: str) -> str:
    return path.rpartition("/")[0] if has_magic(path) else path.rstrip("/")


def _listed_in_store(path: str, options: Mapping[str, Any] | None) -> list[str]:
    is_pattern = has_magic(path)
    is_file = path.endswith(ENDINGS) and not is_pattern
    if is_file or path.startswith(("http://", "https://")):
        return [path]

    def ask() -> list[str]:
        store, root = file_system(path, options)
        if not is_pattern and not path.endswith("/") and not store.isdir(root):
            return [path]
        details = store.glob(root, detail=True) if is_pattern else store.ls(root, detail=True)
        entries = details.values() if isinstance(details, Mapping) else details
        names = [entry["name"] for entry in entries if entry["type"] == "file"]
        store.invalidate_cache()  # else files that come later are not seen
        return [store.unstrip_protocol(name) for name in names]

    return retried(path, ask)


def file_system(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
        DataError: there is no such protocol, or its package is not installed.
    """
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, **(options or {}))
    except (ImportError, ValueError) as error:
        raise DataError(f"{url}: {error}; {_PACKAGES}") from None


def check_protocol(url: str) -> None:
    """Check, without asking the store, that the package for a URL is installed here.

    Raises:
        DataError: it is not, or there is no such protocol.
    """
    import fsspec

    try:
        fsspec.get_filesystem_class(url.partition("://")[0].rpartition("::")[2])
    except (ImportError, ValueError) as error:
        raise DataError(f"{url}: {error}; {_PACKAGES}") from None


def retried(url: str, ask: Callable[[], T]) -> T:
    """Return what a store answers; one that fails is asked again after each of `WAITS_S`.

    Raises:
        DataError: it cannot be read.
    """
    for wait_s in (*WAITS_S, None):
        try:
            return ask()
        except DataError:
            raise
        except Exception as error:  # each store's client has errors of its own
            in_vain = isinstance(error, _IN_VAIN) or "Credentials" in type(error).__name__
            if not in_vain and wait_s is not None:
                time.sleep(wait_s)
                continue
            tries = "" if in_vain else f", asked {len(WAITS_S) + 1} times"
            raise DataError(
                f"{url}: cannot be read ({type(error).__name__}: {error}){tries}; check the "
                "address, storage_options and the credentials"
            ) from error
    raise AssertionError("the last try returns or raises")


def found_files(config: RunConfig) -> dict[str, list[str]]:
    """The files of every data set of a run, by its setting.

    Raises:
        DataError: see `list_files`.
    """
    return {
        f"{name}.paths": [file for path in source.paths for file in list_files(path)]
        for name, source in config.sources.items()
        if isinstance(source, FilesConfig)
    }
