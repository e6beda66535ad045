"""manifest.json: the files of a step with checksums; written last.

Small files and the index have a SHA-256 here. Files of ranks and engines, which have nearly all
bytes, contain checksums of their tiles. The manifest has a checksum of itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.damage import reading
from verl_hpc.config.regular_file import read_regular
from verl_hpc.errors import CheckpointError, DamageError

_OWN_SUM = "sha256"
_MOST_BYTES = 1 << 28
_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_FileName = Annotated[
    str,
    StringConstraints(
        pattern=r"^(index\.h5|state\.json|config\.yaml|(rank|ahead)_\d{5,}\.h5"
        r"|hf(_[a-z][a-z0-9_]*)?/[^/\x00]+)$"
    ),
]


class _Data(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class WrittenFile(_Data):
    """Size and checksum of a file of a step when it was written."""

    bytes: int = Field(ge=0)
    sha256: _Sha256 | None = None
    """None for files of ranks and engines."""


class Manifest(_Data):
    """Content of manifest.json, besides the format's version and its own checksum."""

    step: int = Field(ge=0)
    time: float
    """Time of writing, in seconds since the epoch."""
    num_ranks: int = Field(ge=1)
    save_id: str
    """Id of the save, also stored in the files of ranks and engines to detect files of another
    save."""
    files: dict[_FileName, WrittenFile]
    """Written files by path within the step directory."""

    @property
    def hf_names(self) -> dict[str, list[str]]:
        """Names of the files in hf/ and similar directories, by directory."""
        by_directory: dict[str, list[str]] = {schema.HF: []}
        for directory, _, name in (file.rpartition("/") for file in self.files):
            if schema.is_hf(directory):
                by_directory.setdefault(directory, []).append(name)
        return by_directory

    def check_files(self, step: Path) -> None:
        """Compare every existing file with what was written.

        Raises:
            DamageError: a file is missing, is not a regular file, or has another size or SHA-256;
                or hf/, which is read as a whole, has additional files.
        """
        for name, written in self.files.items():
            if written.sha256 is None:
                _check_size(step / name, written)
            else:
                self.read(step, name)
        for directory, names in self.hf_names.items():
            with reading(step / directory):
                present = sorted(p.name for p in (step / directory).iterdir())
                if present != sorted(names):
                    raise ValueError(f"has {', '.join(present)}, not {', '.join(names)}")

    def read(self, step: Path, name: str) -> bytes:
        """Read a file that has a SHA-256, and check it.

        Raises:
            DamageError: see `check_files`.
        """
        written = self.files.get(name)
        if written is None:
            raise DamageError(f"{step}: {name} is missing in its manifest")
        path = step / name
        _check_size(path, written)
        with reading(path):
            data = read_regular(path)
            if hashlib.sha256(data).hexdigest() != written.sha256:
                raise ValueError("its checksum is not that of what was written")
        return data


def _check_size(path: Path, written: WrittenFile) -> None:
    size = _regular_size(path)
    if size != written.bytes:
        state = "is missing" if size is None else f"has {size}"
        raise DamageError(f"{path.parent}: {path.name} {state}, {written.bytes} bytes were written")


def _regular_size(path: Path) -> int | None:
    """Return the bytes of a regular file of a step; None if it does not exist."""
    with reading(path):
        try:
            facts = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if path.parent.is_symlink() and schema.is_hf(path.parent.name):
            raise ValueError("its directory is a symbolic link")
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("not a regular file")
        return facts.st_size


def write_manifest(step: Path, manifest: Manifest) -> None:
    """Write a manifest and sync it to disk.

    Raises:
        OSError: it cannot be written.
    """
    content = {"format": schema.FORMAT_VERSION} | manifest.model_dump(mode="json")
    text = json.dumps(content | {_OWN_SUM: sum_of(content)}, indent=1)
    with (step / schema.MANIFEST).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def described(data: bytes) -> WrittenFile:
    """Describe a file with content `data`."""
    return WrittenFile(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_manifest(step: Path) -> Manifest:
    """Read a step's manifest, without looking at the files that it names.

    Raises:
        DamageError: it is missing or damaged.
        CheckpointError: this program does not read the step's format.
    """
    path = step / schema.MANIFEST
    with reading(path):
        size = _regular_size(path)
        if size is None:
            raise ValueError("is missing, so this is not a whole step")
        if size > _MOST_BYTES:
            raise ValueError(f"has {size} bytes")
        content = json.loads(read_regular(path))
        own = content.pop(_OWN_SUM, None)
        version = content["format"]
        if own != sum_of(content):
            raise ValueError("its checksum is not that of what was written")
    if version != schema.FORMAT_VERSION:
        raise CheckpointError(
            f"{step}: written in format {version} of checkpoints, this program reads format "
            f"{schema.FORMAT_VERSION}; resume with the version of verl_hpc that wrote it "
            "(job/source.json, facts.json), or export the step with that version and start a new "
            "run from the export"
        )
    with reading(path):
        del content["format"]
        return Manifest.model_validate(content)


def sum_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, independent of whitespace and order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
