"""Files of a run that the dashboard shows as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.regular_file import is_regular, read_regular
from verl_hpc.metrics.flow_view import FILE_NAME as FLOW

_MOST_BYTES = 16 * 1024**2


@dataclass(frozen=True)
class ShownFile:
    """A file of a run directory, its label, and its media type."""

    name: str
    label: str
    kind: str


FILES = (
    ShownFile("report.html", "report", "text/html"),
    ShownFile("config.yaml", "configuration", "text/plain"),
    ShownFile(FLOW, "flow", "text/plain"),
    ShownFile("facts.json", "facts", "text/plain"),
)


def shown_files(run: Path) -> list[ShownFile]:
    """Return those of `FILES` that a run has; only regular ones, since a link may lead anywhere."""
    return [file for file in FILES if _is_shown(run / file.name)]


def read_shown(run: Path, name: str) -> tuple[str, str]:
    """Return the text and media type of one of `FILES`.

    Raises:
        LookupError: the name is none of them, or the run has no such file to show.
    """
    for file in shown_files(run):
        if file.name == name:
            return read_regular(run / name).decode("utf-8", errors="replace"), file.kind
    raise LookupError("the run has no such file to show")


def _is_shown(path: Path) -> bool:
    return is_regular(path) and path.stat().st_size <= _MOST_BYTES
