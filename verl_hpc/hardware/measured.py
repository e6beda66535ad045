"""Measurements of nodes by `doctor --nodes`, in a file from which the planner takes figures."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationError

from verl_hpc.config.explain import explain, shown
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import GIB, OWN_FIGURES, GpuKind
from verl_hpc.section import Positive, PositiveFinite, Section

MEASURED = "Measured"
"""First word of the sentence that reports the measurements."""
_MOST_APART = 0.1
"""Tolerance of a GPU's memory relative to its kind; kinds that share a name differ by more."""


def _date(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "expected a date and time of ISO 8601, such as 2026-01-31T10:00:00+00:00"
        ) from None
    return text


class Measured(Section):
    """Figures of nodes: of the least of them, where they differ."""

    measured_at: Annotated[str, AfterValidator(_date)]
    """Date and time, ISO 8601."""
    site: str
    """The profile's name."""
    nodes: Positive
    """Number of nodes measured."""
    ranks_per_node: Positive
    device: str
    """The GPUs, by the name that the driver gives them, or cpu."""
    device_memory_gib: PositiveFinite | None = None
    """Memory available to a process on an otherwise empty GPU; null on cores."""
    host_memory_gib: PositiveFinite | None = None
    """Memory of a node available to a job."""
    network_gb_s: PositiveFinite | None = None
    """Per rank, each way: the bus bandwidth of an all-reduce between two nodes by the ranks of one;
    null on one node."""

    @property
    def device_bytes(self) -> int | None:
        return None if self.device_memory_gib is None else int(self.device_memory_gib * GIB)

    @property
    def host_bytes(self) -> int | None:
        return None if self.host_memory_gib is None else int(self.host_memory_gib * GIB)

    def check(self, kind: GpuKind, ranks_per_node: int, named: str) -> None:
        """Refuse figures of other hardware.

        Args:
            kind: of the device.
            ranks_per_node: of the site.
            named: the file and who named it, for errors.

        Raises:
            ConfigError: of another device, or nodes with another number of ranks.
        """
        if (why := self._other(kind, ranks_per_node)) is None:
            return
        raise ConfigError(
            f"{named}: device = {self.device}, {self.ranks_per_node} ranks a node: {why}; "
            "give the file that `doctor --nodes` wrote on these nodes, or leave it out"
        )

    def _other(self, kind: GpuKind, ranks_per_node: int) -> str | None:
        if not kind.is_called(self.device):
            return f"the site profile has {kind.name}"
        if self.ranks_per_node != ranks_per_node:
            return f"the site profile has {ranks_per_node} ranks a node"
        if self.device_memory_gib is None or not kind.is_gpu:
            return None
        if abs(self.device_memory_gib / kind.memory_gib - 1) <= _MOST_APART:
            return None
        return (
            f"it has {self.device_memory_gib:.1f} GiB, and a {kind.name} {kind.memory_gib:.1f}; "
            f"choose another kind, or {OWN_FIGURES}"
        )

    def assumption(self, path: Path) -> str:
        """Say which figures were measured, and when."""
        figures = (
            ("memory of a GPU", self.device_memory_gib, "GiB"),
            ("host memory of a node", self.host_memory_gib, "GiB"),
            ("network", self.network_gb_s, "GB/s a rank"),
        )
        words = [f"{name} {size:,.2f} {unit}" for name, size, unit in figures if size is not None]
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)} of site {self.site}"
        when = datetime.fromisoformat(self.measured_at).date()
        return f"{MEASURED} on {nodes} on {when} ({path}): {', '.join(words) or 'nothing'}."


def read_measured(path: Path, named: str) -> Measured:
    """Read a file that the doctor wrote.

    Args:
        named: the file and who named it, for errors.

    Raises:
        ConfigError: it cannot be read, or the doctor did not write it.
    """
    todo = "give the file that `doctor --nodes` wrote, or leave it out"
    try:
        tree = json.loads(path.read_text("utf-8"))
        if not isinstance(tree, dict):
            raise ConfigError(f"{named}: expected an object, found {shown(tree)}; {todo}")
        return Measured.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{named}:\n{explain(error, Measured)}\n{todo}") from None
    except OSError as error:
        raise ConfigError(f"{named}: {error.strerror or error}; {todo}") from None
    except ValueError as error:
        raise ConfigError(f"{named}: no JSON ({error}); {todo}") from None
