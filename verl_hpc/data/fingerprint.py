"""Fingerprints that tell whether a data set is the one that a run started with."""

from __future__ import annotations

import json
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import xxhash

from verl_hpc.config.data import (
    FilesConfig,
    MixedConfig,
    ReasoningGymConfig,
    TrainConfig,
    single_sources,
)
from verl_hpc.data.row_files import RemoteFile
from verl_hpc.errors import DataError
from verl_hpc.sources.files import is_url, list_files

CHUNK_BYTES = 1 << 20


def fingerprint(*sources: TrainConfig) -> str:
    """Return the XXH3 digest of what decides the rows of data sets, as 32 hexadecimal digits.

    For files, those in stores too, these are their bytes in order and the settings that choose
    columns and rows, not their paths; for generated problems, their settings and the library's
    version. Files are read whole, so one rank should ask and tell the others.

    Raises:
        DataError: a file that cannot be read.
    """
    digest = xxhash.xxh3_128()
    for mix in sources:
        if isinstance(mix, MixedConfig):
            digest.update(json.dumps(["mix", mix.weights]).encode())
    for source in chain.from_iterable(single_sources(mix).values() for mix in sources):
        settings = source.model_dump(mode="json", exclude={"paths"}, exclude_defaults=True)
        digest.update(json.dumps([source.kind, settings], sort_keys=True).encode())
        if isinstance(source, FilesConfig):
            for file in chain.from_iterable(map(list_files, source.paths)):
                digest.update(of_file(RemoteFile(file) if is_url(file) else Path(file)))
        else:
            assert isinstance(source, ReasoningGymConfig), "rows of a class are in a file"
            digest.update(version("reasoning-gym").encode())
    return digest.hexdigest()


def of_file(path: Path | RemoteFile) -> bytes:
    """Return the XXH3 digest of a file's content, 16 bytes.

    Raises:
        DataError: it cannot be read.
    """
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error}); check the path and its permissions"
        ) from None
    return digest.digest()
