"""Engines that generate, behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_hpc.lazy_names import lazy_names

_NAMES = ("RolloutManager", "VLLMActorModel", "vLLMActor")
"""Of the tutorials, which import them from here."""
if TYPE_CHECKING:
    from verl_hpc import RolloutManager as RolloutManager
    from verl_hpc import VLLMActorModel as VLLMActorModel
    from verl_hpc import vLLMActor as vLLMActor
else:
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_NAMES, "verl_hpc"))
