"""manifest.json: what a step consists of, with checksums; the last file of a step to be written.

Small files and the index have a SHA-256 here. Those of ranks and engines, which hold nearly all
bytes, have checksums of their own inside, tile by tile. The manifest has one of itself.
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
    """A file of a step as it was written."""

    bytes: int = Field(ge=0)
    sha256: _Sha256 | None = None
    """None for files of ranks and of engines."""


class Manifest(_Data):
    """What manifest.json holds, besides the version of the format and its own checksum."""

    step: int = Field(ge=0)
    time: float
    """When it was written, in seconds since the epoch."""
    num_ranks: int = Field(ge=1)
    save_id: str
    """Also in the files of ranks and of engines: those of another save have another."""
    files: dict[_FileName, WrittenFile]
    """By path within the step directory."""

    @property
    def hf_names(self) -> dict[str, list[str]]:
        """Names of the files in hf/ and its like, by directory."""
        found: dict[str, list[str]] = {schema.HF: []}
        for directory, _, name in (file.rpartition("/") for file in self.files):
            if schema.is_hf(directory):
                found.setdefault(directory, []).append(name)
        return found

    def check_files(self, step: Path) -> None:
        """Compare every file that is there with what was written.

        Raises:
            DamageError: a file is missing, is not a regular file, or has another size or SHA-256;
                or hf/, which is read as a whole, has more files than were written.
        """
        for name, written in self.files.items():
            if written.sha256 is None:
                _check_size(step / name, written)
            else:
                self.read(step, name)
        for directory, names in self.hf_names.items():
            with reading(step / directory):
                found = sorted(p.name for p in (step / directory).iterdir())
                if found != sorted(names):
                    raise ValueError(f"has {', '.join(found)}, not {', '.join(names)}")

    def read(self, step: Path, name: str) -> bytes:
        """The content of one file that has a SHA-256.

        Raises:
            DamageError: as `check_files`.
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
    found = _regular_size(path)
    if found != written.bytes:
        state = "is missing" if found is None else f"has {found}"
        raise DamageError(f"{path.parent}: {path.name} {state}, {written.bytes} bytes were written")


def _regular_size(path: Path) -> int | None:
    """Bytes of a regular file of a step; None if there is none."""
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
    """Write it to disk for good.

    Raises:
        OSError: it cannot be written.
    """
    content = {"format": schema.FORMAT_VERSION} | manifest.model_dump(mode="json")
    text = json.dumps(content | {_OWN_SUM: sum_of(content)}, indent=1)
    with (step / schema.MANIFEST).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def describe(path: Path, hashed: bool) -> WrittenFile:
    """A file as it is now."""
    return described(path.read_bytes()) if hashed else WrittenFile(bytes=path.stat().st_size)


def described(data: bytes) -> WrittenFile:
    """A file of this content."""
    return WrittenFile(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_manifest(step: Path) -> Manifest:
    """A step's manifest; the files that it names are not looked at.

    Raises:
        DamageError: there is none, or not as it was written.
        CheckpointError: the step has a format that this program does not read.
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
        if own != sum_of(content) and not _is_first_format(content, own):
            raise ValueError("its checksum is not that of what was written")
    if version not in schema.READABLE:
        raise CheckpointError(
            f"{step}: written in format {version} of checkpoints, this program reads formats "
            f"{' and '.join(map(str, schema.READABLE))}; resume with the version of verl_hpc that "
            "wrote it (job/source.json, facts.json), or export the step with that version and "
            "start a new run from the export"
        )
    with reading(path):
        del content["format"]
        return Manifest.model_validate(content)


def _is_first_format(content: dict[str, Any], own: object) -> bool:
    """Format 1 had no checksums: nothing but sizes of files."""
    sizes = content.get("files")
    return (
        own is None
        and content["format"] == 1
        and isinstance(sizes, dict)
        and all(isinstance(size, int) for size in sizes.values())
    )


def sum_of(content: dict[str, Any]) -> str:
    """SHA-256 of what a manifest says, whatever its spaces and order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
