"""One value that Slurm, a container or a rank gets, and where it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RUN_CONFIG = "run config"
SITE = "site"
COMMAND_LINE = "command line"
DEFAULT = "default"
PLAN = "plan"
"""Found by a search for a layout."""


@dataclass(frozen=True)
class Setting:
    """A name and its value; an option that takes no value has None."""

    name: str
    value: str | None
    origin: str
    """RUN_CONFIG, SITE, COMMAND_LINE, DEFAULT or PLAN; a computed value has its reason after it."""

    @property
    def text(self) -> str:
        """As an option's words, unquoted: `mpi=pmi2`, or `label`."""
        return self.name if self.value is None else f"{self.name}={self.value}"


def merge(ours: Iterable[Setting], extra: Iterable[Setting]) -> list[Setting]:
    """`ours` with `extra` after it; an entry of the same name is overridden in place."""
    merged = {setting.name: setting for setting in ours}
    merged.update((setting.name, setting) for setting in extra)
    return list(merged.values())


def parse_option(word: str, origin: str) -> Setting:
    """`--gres=gpu:8` or `--exclusive`, as a site profile spells it."""
    name, separator, value = word.removeprefix("--").partition("=")
    return Setting(name, value if separator else None, origin)
