"""Images of sandboxes: the files of a root directory, which bubblewrap enters.

A .sif of Apptainer and a .sqsh of Enroot hold such files as a squashfs, which is unpacked once a
node.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from verl_hpc.agents.held import Held, hold
from verl_hpc.rewards.sandbox.keeper import remove_directory

_SIF, _HEADER, _DESCRIPTOR, _OF_ITS_KIND = b"SIF_MAGIC", 128, 585, 201
"""Word of a SIF file; bytes of its header and of each descriptor, and where in one what is of its
kind begins (apptainer/sif, pkg/sif)."""
_PARTITION, _SQUASHFS_OF_THE_SYSTEM = 0x4004, (1, 2)


def hold_image(image: str, within: Path) -> Held | None:
    """Hold this node's directory of an image that has to be unpacked; None for another one."""
    path = Path(image)
    if not path.is_file():
        return None
    found = path.stat()
    facts = f"{path.resolve()} {found.st_size} {found.st_mtime_ns}"
    return hold(f"image-{os.getuid()}-{sha256(facts.encode()).hexdigest()[:16]}", within)


def unpacked(image: str, place: Path) -> Path:
    """Return the root directory of an image's files, which are unpacked if they are not yet.

    Args:
        image: a .sif or .sqsh file.
        place: this node's directory of the image, which the caller holds.

    Raises:
        OSError: it cannot be unpacked.
    """
    root, partial = place / "root", place / "partial"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
        remove_directory(str(partial))
        program = shutil.which("unsquashfs")
        if program is None:
            raise FileNotFoundError(
                "unsquashfs is not installed, which unpacks it; install squashfs-tools, or name a "
                "directory into which it was unpacked"
            )
        words = [program, "-no-progress", "-no-xattrs", "-no-exit-code", "-quiet"]
        words += ["-offset", str(_offset(image)), "-dest", str(partial), image]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise OSError(f"unsquashfs: {(done.stderr or done.stdout).strip()[-400:]}")
        return partial.rename(root)


def _offset(image: str) -> int:
    """Return where an image's squashfs begins: at 0, or where the table of a SIF file says."""
    with Path(image).open("rb") as file:
        header = file.read(_HEADER)
        if not header[32:].startswith(_SIF):
            return 0
        number, start = struct.unpack_from("<qq", header, 88)
        file.seek(start)
        for _ in range(number):
            descriptor = file.read(_DESCRIPTOR)
            kind, used, offset = struct.unpack_from("<i?12xq", descriptor)
            of_its_kind = struct.unpack_from("<ii", descriptor, _OF_ITS_KIND)
            if used and kind == _PARTITION and of_its_kind == _SQUASHFS_OF_THE_SYSTEM:
                return int(offset)
    raise OSError("it has no squashfs of a system; encrypted images cannot be entered")


def entering(root: Path, mounts: Sequence[str], at: str) -> list[str]:
    """Return bubblewrap's options that show an image's files.

    bubblewrap makes the places of mounts, but none in what is read-only: a directory of the image
    that has one below it is made anew, of the image's entries.

    Args:
        root: directory of the files.
        mounts: absolute paths where others will be mounted.
        at: where the files appear.
    """
    words: list[str] = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        place = f"{at}/{entry.name}"
        if entry.is_symlink():
            words += ["--symlink", str(Path(entry.path).readlink()), place]
        elif place in mounts:
            continue
        elif entry.is_dir() and any(mount.startswith(f"{place}/") for mount in mounts):
            words += ["--dir", place, *entering(Path(entry.path), mounts, place)]
        else:
            words += ["--ro-bind", entry.path, place]
    return words
