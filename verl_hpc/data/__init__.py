"""Data sets. The names of `verl_hpc` that are about data are here, too, where verl's tutorials
import them from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_hpc.lazy_names import lazy_names

_NAMES = ("DataProvider", "get_dataloader")

if TYPE_CHECKING:
    from verl_hpc import DataProvider as DataProvider
    from verl_hpc import get_dataloader as get_dataloader
else:
    from verl_hpc import ELSEWHERE

    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_NAMES, "verl_hpc"), ELSEWHERE)
