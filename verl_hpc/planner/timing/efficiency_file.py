"""Factors of the time model in a file, as `plan calibrate` writes and `plan --efficiency` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import GpuKind
from verl_hpc.planner.timing.cost import FRACTIONS, TERMS, Basis, Efficiency, defaults

_BASIS, _SPREAD = "basis", "spread"
_TODO = "give a file that `plan calibrate RUN... --out FILE` has written, or leave it out"


def read_efficiency(path: str | Path | None, kind: GpuKind | None = None) -> Efficiency:
    """Read factors from a file; those it lacks, or all without a file, have their defaults.

    Args:
        path: of the file.
        kind: hardware that they are for. A GPU's peaks are of its data sheet, and no fraction of
            them is above 1; a core's are round figures.

    Raises:
        ConfigError: it cannot be read, or a name or a value is not valid for a factor.
    """
    if path is None:
        return defaults(kind)
    named = f"--efficiency {path}"
    if not Path(path).is_file():
        problem = "is a directory" if Path(path).is_dir() else "no such file"
        raise ConfigError(f"{named}: {problem}; {_TODO}")
    factors = dict(read_tree(Path(path)))
    basis = _read_basis(named, factors, f"of {path}")
    for name, value in factors.items():
        if name not in TERMS:
            known = near_or_all(name, TERMS, "choose one of")
            raise ConfigError(f"{named}: {name}: no such factor; {known}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or (name in FRACTIONS and value == 0):
            least = "above 0" if name in FRACTIONS else "from 0 up"
            raise ConfigError(f"{named}: {name} = {value!r}: a number {least} is needed; {_TODO}")
        if kind is not None and kind.is_gpu and name in FRACTIONS and value > 1:
            raise ConfigError(
                f"{named}: {name} = {value!r}: a fraction of the peak of {kind.name} is needed, "
                "above 0 and at most 1; fit it to runs on such GPUs (plan calibrate)"
            )
    fitted = {name: float(value) for name, value in factors.items()}
    return replace(defaults(kind), basis=basis, **fitted)


def _read_basis(named: str, factors: dict[str, Any], otherwise: str) -> Basis:
    """Take what the factors rest on out of a file's tree.

    Args:
        named: how errors call the file.
        factors: the tree, from which it is removed.
        otherwise: text where the file has none.
    """
    text, spread = factors.pop(_BASIS, otherwise), factors.pop(_SPREAD, None)
    number = isinstance(spread, int | float) and not isinstance(spread, bool)
    if spread is not None and not (number and 0 <= spread < float("inf")):
        raise ConfigError(f"{named}: {_SPREAD} = {spread!r}: a number from 0 up is needed; {_TODO}")
    return Basis(str(text), None if spread is None else float(spread))


def write_efficiency(efficiency: Efficiency, comment: Sequence[str]) -> str:
    """Format factors as the text of such a file.

    Args:
        comment: lines at its beginning.
    """
    basis = efficiency.basis
    known: dict[str, Any] = {_BASIS: basis.text}
    if basis.spread is not None:
        known[_SPREAD] = round(basis.spread, 4)
    factors = {name: float(f"{getattr(efficiency, name):.6g}") for name in TERMS}
    return "".join(f"# {line}\n" for line in comment) + write_yaml(known | factors)
