"""Compile caches of a node in one file of shared storage: packed, unpacked, and kept few.

The file is a tar archive with the SHA-256 digest of its bytes behind it. It is written under
another name and renamed, so that a reader has a whole archive or none; a reader whose file is
replaced or removed goes on with the one that it has opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from verl_hpc.errors import ClusterError
from verl_hpc.runs.contract import CACHE_DIRECTORY

KINDS = ("inductor", "triton", "vllm", "tilelang")
"""Directories of `runs.contract.CACHES` that are kept. Their files are named by what they were
compiled from, and are found again in a directory of another name (docs/containers.md)."""
LARGEST = 4 * 2**30
"""Bytes of an archive at most."""
MOST = 32 * 2**30
"""Bytes of all archives of a directory at most."""
SUFFIX, _PART = ".tar", ".part"
_DIGEST_SIZE = hashlib.sha256().digest_size
_BLOCK = 2**20
_UNFINISHED = (".lock", ".tmp")
"""How names end of locks, and of what a compiler that was killed has left."""
_UNFINISHED_DIRECTORY = "tmp.pid_"
_GROUP = "__grp__*.json"
"""Files in which Triton lists the files of a kernel by their absolute paths."""


def directory_of(kept: Path) -> Path:
    """This user's own directory below the one that the site profile names: it has archives and
    nothing else, and none that somebody else has written."""
    return kept / f"verl_hpc-{os.getuid()}"


def make_node_directory(environ: Mapping[str, str] = os.environ) -> None:
    """Make this node's directory of compile caches, if the job has one.

    Raises:
        ClusterError: it cannot be made, or is another user's, who may have put code into it.
    """
    if not (name := environ.get(CACHE_DIRECTORY)):
        return
    try:
        Path(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(Path(name), "node_scratch")
    except OSError as error:
        raise ClusterError(
            f"{socket.gethostname()}: {name} cannot be made ({error.strerror}); set node_scratch "
            "in the site profile to a directory of the nodes that you may write to"
        ) from None


def check_directory(directory: Path, setting: str = "caches") -> None:
    """Refuse a directory that is another user's, or open to anybody: ranks run what is in it.

    Args:
        directory: to be looked at.
        setting: of the site profile, from which it is.

    Raises:
        ClusterError: somebody else owns it, or others than owner and group may write there.
        OSError: it cannot be looked at.
    """
    status = directory.stat()
    if status.st_uid != os.getuid():
        raise ClusterError(
            f"{socket.gethostname()}: {directory} belongs to user {status.st_uid}, and ranks would "
            f"run what is in it; have it removed, or set another {setting} in the site profile"
        )
    if status.st_mode & 0o002:
        raise ClusterError(
            f"anybody may write into {directory}, and ranks would run what is in it; "
            f"`chmod o-w {directory}` closes it"
        )


def unpack(archive: Path, root: Path) -> frozenset[str]:
    """Put the files of an archive below `root`; all of them or, if it is damaged, none.

    Returns:
        Their paths below `root`; none if there is no archive.

    Raises:
        ClusterError: it is damaged, too large, or has something else than files of caches.
        OSError, tarfile.TarError: it cannot be read, or `root` cannot be written.
    """
    try:
        file = archive.open("rb")
    except FileNotFoundError:
        return frozenset()
    with file:
        with contextlib.suppress(OSError):
            os.utime(file.fileno())  # Those that nobody uses are the first to be removed.
        _check_digest(file)
        root.mkdir(parents=True, exist_ok=True)
        # A full disk must not leave a part of a file where a compiler takes it for a whole one.
        staged = Path(tempfile.mkdtemp(prefix=".unpack", dir=root))
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                tar.extractall(staged, filter=_only_caches)  # noqa: S202
            return _move(staged, root)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def pack(root: Path, archive: Path, known: frozenset[str]) -> frozenset[str]:
    """Replace an archive by all files of the caches below `root`, if some are new; then remove
    archives of its directory, the oldest by use first, until they are no more than `MOST` bytes.

    Nothing may be compiled meanwhile on this node.

    Args:
        root: of the caches.
        archive: file to write.
        known: paths below `root` that the archive has, as `unpack` or `pack` returned them.

    Returns:
        What the archive has now.

    Raises:
        ClusterError: the files are more than `LARGEST` bytes; the archive is removed.
        OSError: the archive cannot be written; the one before it stays.
    """
    names = frozenset(_files(root))
    if names <= known:
        return known
    size = sum((root / name).stat().st_size for name in names)
    if size > LARGEST:
        archive.unlink(missing_ok=True)  # the next start keeps what it needs itself
        raise ClusterError(
            f"the compile caches have {size / 2**30:.1f} GiB, and {LARGEST / 2**30:g} GiB are kept "
            "at most; the next start begins anew"
        )
    part = archive.with_name(f".{archive.stem}.{secrets.token_hex(8)}{_PART}")
    try:
        with open(part, "x+b", opener=_private) as file:
            _write(root, sorted(names), file)
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)
    remove_oldest(archive.parent, MOST)
    return names


def remove_oldest(directory: Path, most: int) -> None:
    """Remove archives, and what writers that were killed have left, the oldest by use first, until
    they have `most` bytes together. The newest stays."""
    archives = []
    for path in directory.iterdir():
        if path.suffix in (SUFFIX, _PART):
            with contextlib.suppress(FileNotFoundError):  # Another job removes them, too.
                stat = path.stat()
                archives.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in archives)
    for _, size, path in sorted(archives)[:-1]:
        if total <= most:
            return
        with contextlib.suppress(OSError):  # It may be another user's.
            path.unlink()
            total -= size


def _files(root: Path) -> Iterator[str]:
    for kind in KINDS:
        for directory, below, names in os.walk(root / kind):
            below[:] = [name for name in below if not name.startswith(_UNFINISHED_DIRECTORY)]
            for name in names:
                path = Path(directory, name)
                if not name.endswith(_UNFINISHED) and path.is_file() and not path.is_symlink():
                    yield path.relative_to(root).as_posix()


def _write(root: Path, names: list[str], file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in names:
            tar.add(root / name, name, recursive=False, filter=_of_nobody)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    file.write(digest)


def _private(name: str, flags: int) -> int:
    """Open a file that nobody else may write, even where the umask lets the group."""
    return os.open(name, flags, 0o644)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _check_digest(file: IO[bytes]) -> None:
    """Read the file whole, and go back to its beginning."""
    size = os.fstat(file.fileno()).st_size
    if size > 2 * LARGEST:
        raise ClusterError(f"it has {size / 2**30:.1f} GiB, more than any that is written")
    digest, left = hashlib.sha256(), size - _DIGEST_SIZE
    while left > 0 and (data := file.read(min(left, _BLOCK))):
        digest.update(data)
        left -= len(data)
    if file.read() != digest.digest():
        raise ClusterError("it is damaged: its digest is another")
    file.seek(0)


def _only_caches(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """A filter of tarfile: files of caches, and nothing that leads out of `path`."""
    kind, _, rest = member.name.partition("/")
    if member.type != tarfile.REGTYPE or kind not in KINDS or not rest:
        raise ClusterError(f"it has {member.name!r}, which is no file of a compile cache")
    return tarfile.data_filter(member, path)


def _move(staged: Path, root: Path) -> frozenset[str]:
    names = frozenset(_files(staged))
    # First what a damaged file can keep from working, then what only a full disk can.
    for name in names:
        if (group := staged / name).match(_GROUP):
            _name_anew(group, (root / name).parent)
    for name in names:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (staged / name).replace(target)
    return names


def _name_anew(group: Path, directory: Path) -> None:
    """Let a group of Triton's name its files, which are beside it, in `directory`."""
    try:
        tree = json.loads(group.read_text(encoding="utf-8"))
        tree["child_paths"] = {name: str(directory / name) for name in tree["child_paths"]}
    except (ValueError, KeyError, TypeError):
        raise ClusterError(f"{group.name} in it is no list of Triton's files") from None
    group.write_text(json.dumps(tree), encoding="utf-8")
