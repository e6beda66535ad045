"""Nodes that failed the doctor's checks, and are kept out of submissions until a date.

One JSON file of a user, or of a group that shares nodes: whoever reads it sees the old list or the
new one, never half of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from verl_hpc.cluster.site import Site
from verl_hpc.config.regular_file import replace_text
from verl_hpc.errors import ConfigError

FILE = "verl_hpc/excluded_nodes.json"
"""Below the user's directory of settings."""


@dataclass(frozen=True)
class ExcludedNode:
    """One node of one site, and why it is kept out."""

    site: str
    node: str
    reason: str
    until: str
    """ISO 8601, in UTC."""

    def holds(self, now: datetime) -> bool:
        return datetime.fromisoformat(self.until) > now


def exclude_list(site: Site | None) -> Path:
    """The file: the site's, or the user's own."""
    if site is not None and site.preflight.exclude_list is not None:
        return Path(os.path.expandvars(site.preflight.exclude_list)).expanduser()
    settings = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(settings).expanduser() / FILE


def read_excluded(path: Path, now: datetime | None = None) -> list[ExcludedNode]:
    """Entries that have not expired, by site and node; none if there is no file.

    Raises:
        ConfigError: the file cannot be read, or is no such list.
    """
    now = now or datetime.now(UTC)
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        nodes = [ExcludedNode(**entry) for entry in tree["nodes"]]
        return sorted((n for n in nodes if n.holds(now)), key=lambda n: (n.site, n.node))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: not a list of excluded nodes ({type(error).__name__}: {error}); correct it, "
            "or remove it to exclude none"
        ) from None


def excluded_nodes(site: Site) -> tuple[str, ...]:
    """Names of the site's nodes that are to be kept out now."""
    return tuple(n.node for n in read_excluded(exclude_list(site)) if n.site == site.name)


def exclude(path: Path, site: Site, failing: Iterable[tuple[str, str]]) -> list[ExcludedNode]:
    """Put nodes, with the reason of each, on the list; a node that is on it stays for longer.

    Returns:
        The new entries.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    now = datetime.now(UTC)
    until = now + timedelta(days=site.preflight.exclude_days)
    added = [
        ExcludedNode(site.name, node, reason, until.isoformat(timespec="seconds"))
        for node, reason in failing
    ]
    names = {entry.node for entry in added}
    kept = [n for n in read_excluded(path, now) if n.site != site.name or n.node not in names]
    if added:
        _write(path, [*kept, *added])
    return added


def forget(path: Path, node: str) -> None:
    """Take a node off the list, whichever site it is of.

    Raises:
        ConfigError: it is not on the list, or the file cannot be written.
    """
    entries = read_excluded(path)
    if node not in {entry.node for entry in entries}:
        names = ", ".join(entry.node for entry in entries) or "none"
        raise ConfigError(f"--forget {node}: not on the list {path}; excluded are: {names}")
    _write(path, [entry for entry in entries if entry.node != node])


def _write(path: Path, entries: Iterable[ExcludedNode]) -> None:
    tree = {"version": 1, "nodes": [asdict(entry) for entry in entries]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(tree, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); name another with "
            "preflight.exclude_list in the site profile"
        ) from None
