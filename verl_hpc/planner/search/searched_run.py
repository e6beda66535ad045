"""Input of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture


@dataclass(frozen=True)
class SearchedRun:
    """A run whose placement and layouts are searched."""

    config: RunConfig
    settings: Mapping[str, RoleSettings]
    """Settings of every role; roles share an engine only where they must."""
    archs: Mapping[str, Architecture]
    """Architecture of every role."""
    hardware: Hardware
    """Hardware of the nodes."""
    num_ranks: int
    spare_bytes: int
    """Bytes to leave free on every device."""
