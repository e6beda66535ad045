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
        """Words of the option, unquoted: `mpi=pmi2`, or `label`."""
        return self.name if self.value is None else f"{self.name}={self.value}"


_LISTS = ("exclude", "gres", "licenses")
"""Options whose value is a list, so that a second one adds to the first."""


def merge(ours: Iterable[Setting], extra: Iterable[Setting]) -> list[Setting]:
    """`ours` with `extra` after it; an entry of the same name is overridden in place, or added to
    if its values are a list."""
    merged = {setting.name: setting for setting in ours}
    for setting in extra:
        before = merged.get(setting.name)
        merged[setting.name] = setting if before is None else _over(before, setting)
    return list(merged.values())


def _over(before: Setting, setting: Setting) -> Setting:
    kept, more = before.value, setting.value
    if setting.name not in _LISTS or not kept or not more or "none" in (kept, more):
        return setting
    if setting.name == "gres":  # a second request of a kind of resource takes the first one's place
        again = {item.partition(":")[0] for item in more.split(",")}
        kept = ",".join(item for item in kept.split(",") if item.partition(":")[0] not in again)
    if not kept:
        return setting
    origin = f"{before.origin} and {setting.origin}"
    return Setting(setting.name, f"{kept},{more}", origin)


def parse_option(word: str, origin: str) -> Setting:
    """`--gres=gpu:8` or `--exclusive`, as a site profile spells it."""
    name, separator, value = word.removeprefix("--").partition("=")
    return Setting(name, value if separator else None, origin)
