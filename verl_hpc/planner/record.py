"""Where a configuration's layout came from: lines at the top of its file, and the reading of them.

`plan --search --write` and `submit --auto` write them; `config --config FILE --explain NAME` tells
what they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_BY, _WHY, _NAMES = "# Layout found by: ", "# Why: ", "# Settings found: "


@dataclass(frozen=True)
class Record:
    """Of a search."""

    by: str
    """The command."""
    why: str
    """What it is the best of."""
    names: tuple[str, ...]
    """Settings that it chose, sections among them."""

    def covers(self, name: str) -> bool:
        """Whether it chose a setting, or the section of it."""
        return any(name == known or name.startswith(f"{known}.") for known in self.names)

    def header(self) -> str:
        """Lines of a YAML file."""
        return f"{_BY}{self.by}\n{_WHY}{self.why}\n{_NAMES}{', '.join(self.names)}\n"


def read_record(path: Path) -> Record | None:
    """Of a configuration's file; None where it has none.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        found |= {key: line.removeprefix(key) for key in (_BY, _WHY, _NAMES) if key in line[:20]}
    if len(found) < 3:
        return None
    return Record(found[_BY], found[_WHY], tuple(found[_NAMES].split(", ")))
