"""Factors of the time model in a file, as `plan calibrate` writes and `plan --efficiency` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.planner.timing.cost import FRACTIONS, TERMS, Efficiency


def read_efficiency(path: str | Path | None) -> Efficiency:
    """The factors of a file over the defaults; the defaults without a file.

    Raises:
        ConfigError: it cannot be read, or has a name or a value that is none of a factor.
    """
    if path is None:
        return Efficiency()
    factors = read_tree(Path(path))
    for name, value in factors.items():
        if name not in TERMS:
            raise ConfigError(f"{path}: {name}: no such factor; {near_or_all(name, TERMS, 'them')}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or (name in FRACTIONS and value == 0):
            least = "above 0" if name in FRACTIONS else "from 0 up"
            raise ConfigError(f"{path}: {name} = {value!r}: a number {least} is needed")
    return Efficiency(**{name: float(value) for name, value in factors.items()})


def write_efficiency(efficiency: Efficiency, comment: Sequence[str]) -> str:
    """The text of such a file.

    Args:
        comment: lines at its beginning.
    """
    factors = {name: float(f"{getattr(efficiency, name):.6g}") for name in TERMS}
    return "".join(f"# {line}\n" for line in comment) + write_yaml(factors)
