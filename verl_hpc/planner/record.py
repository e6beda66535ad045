"""The header of a configuration file that records which search found its layout.

`plan --search --write` and `submit --auto` write it; `config --config FILE --explain NAME` shows
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_BY, _WHY, _NAMES = "# Layout found by: ", "# Why: ", "# Settings found: "


@dataclass(frozen=True)
class Record:
    """A search whose result was written into a configuration."""

    by: str
    """The command."""
    why: str
    """Why this result was chosen."""
    names: tuple[str, ...]
    """Settings that it chose, sections among them."""

    def covers(self, name: str) -> bool:
        """Whether it chose a setting, or the section of it."""
        return any(name == known or name.startswith(f"{known}.") for known in self.names)

    def header(self) -> str:
        """Lines of a YAML file."""
        return f"{_BY}{self.by}\n{_WHY}{self.why}\n{_NAMES}{', '.join(self.names)}\n"


def read_record(path: Path) -> Record | None:
    """Read the record from a configuration file; None if the file has none.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    values: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        values |= {key: line.removeprefix(key) for key in (_BY, _WHY, _NAMES) if key in line[:20]}
    if len(values) < 3:
        return None
    return Record(values[_BY], values[_WHY], tuple(values[_NAMES].split(", ")))
