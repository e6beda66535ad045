"""Models by their names on a hub, in the caches of Hugging Face's Hub and of ModelScope.

Caches are read without network or library.
Layouts: `models--ORG--NAME/refs/REVISION` has the commit that `snapshots/COMMIT` is of, with links
into `blobs/` (huggingface_hub, "Understand caching"); ModelScope has `models/ORG/NAME`, one state
of each, named in its file `.mv`, with `___` for the dots of a name (modelscope.hub.utils.caching).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Hub = Literal["hf", "modelscope"]

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(
    rf"(?:(?P<hub>hf|modelscope):)?(?P<repo>{_PART}/{_PART})"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?"
)


@dataclass(frozen=True)
class HubName:
    """A repository on a hub, and which state of it."""

    hub: Hub
    repo: str
    """ORG/NAME."""
    revision: str | None = None
    """A branch, a tag or a commit; None is the hub's default branch."""

    def __str__(self) -> str:
        prefix = "" if self.hub == "hf" else f"{self.hub}:"
        return f"{prefix}{self.repo}" + (f"@{self.revision}" if self.revision else "")


def parse_name(text: str) -> HubName | None:
    """Read `ORG/NAME`, `ORG/NAME@REVISION`, and either with the prefix `hf:` or `modelscope:`.

    None where the text has another form, and so can only be a path.
    """
    match = _NAME.fullmatch(text)
    if match is None or ".." in text:
        return None
    hub: Hub = "modelscope" if match["hub"] == "modelscope" else "hf"
    return HubName(hub, match["repo"], match["revision"])


_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)")
_DEFAULT_BRANCH = "main"


def hf_cache() -> Path:
    """Directory of huggingface_hub's cache: HF_HUB_CACHE, or hub/ below HF_HOME."""
    environ = os.environ
    home = environ.get("HF_HOME", f"{environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface")
    older = environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub")
    return Path(os.path.expandvars(environ.get("HF_HUB_CACHE", older))).expanduser().absolute()


def modelscope_caches() -> list[Path]:
    """Directories that ModelScope's versions keep ORG/NAME in, the newest layout first."""
    given = os.environ.get("MODELSCOPE_CACHE")
    if given is None:
        hub = Path("~/.cache/modelscope/hub").expanduser()
        return [hub / "models", hub]
    root = Path(given).expanduser().absolute()
    return [root / "models", root / "hub" / "models", root / "hub", root]


def locate(name: HubName) -> Path | None:
    """The model's directory in the cache; None where it, or this revision of it, is not there."""
    return _in_modelscope(name) if name.hub == "modelscope" else _in_hf(name)


def repository(path: str | Path) -> Path:
    """Directory that must be visible to read a cached model: links of a snapshot lead to its
    repository's blobs. Any other path is returned as it is."""
    directory = Path(path)
    return directory.parents[1] if _hf_name(directory) else directory


def source_of(path: str | Path) -> str | None:
    """The name and the revision of a directory of a cache, such as ORG/NAME@COMMIT; None of any
    other path."""
    directory = Path(path)
    return _hf_name(directory) or _modelscope_name(directory)


def _in_hf(name: HubName) -> Path | None:
    repo = hf_cache() / f"models--{name.repo.replace('/', '--')}"
    revision = name.revision or _DEFAULT_BRANCH
    ref = repo / "refs" / revision
    try:
        commit = ref.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    snapshots = [repo / "snapshots" / commit] if commit else []
    if re.fullmatch("[0-9a-f]{7,39}", commit):  # a short form of a commit
        snapshots = sorted((repo / "snapshots").glob(f"{commit}*"))
    return snapshots[0] if len(snapshots) == 1 and snapshots[0].is_dir() else None


def _in_modelscope(name: HubName) -> Path | None:
    org, repo = name.repo.split("/")
    for root in modelscope_caches():
        for spelt in (repo.replace(".", "___"), repo):
            directory = root / org / spelt
            if directory.is_dir() and _is_revision(directory, name.revision):
                return directory
    return None


def _is_revision(directory: Path, wanted: str | None) -> bool:
    return wanted is None or wanted == dict(_version(directory)).get("Revision")


def _version(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the fields that ModelScope has recorded about a directory's revision."""
    try:
        text = (directory / ".mv").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for word in text.strip().split(","):
        key, separator, value = word.partition(":")
        if separator:
            yield key, value


def _hf_name(directory: Path) -> str | None:
    if len(directory.parts) < 3 or directory.parent.name != "snapshots":
        return None
    repo = _REPO.fullmatch(directory.parents[1].name)
    if repo is None or not _COMMIT.fullmatch(directory.name):
        return None
    return f"{repo['org']}/{repo['name']}@{directory.name}"


def _modelscope_name(directory: Path) -> str | None:
    version = dict(_version(directory))
    if "Revision" not in version:
        return None
    name = f"{directory.parent.name}/{directory.name.replace('___', '.')}"
    made = f" of {version['CreatedAt']}" if "CreatedAt" in version else ""
    return f"modelscope:{name}@{version['Revision']}{made}"
