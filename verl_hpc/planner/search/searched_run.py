"""What a search is made of."""

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
    """Of every role; none shares another's engine, but where it must."""
    archs: Mapping[str, Architecture]
    """Of every role."""
    hardware: Hardware
    """Of the nodes."""
    num_ranks: int
    spare_bytes: int
    """To be left free on every device."""
