"""Save and restore the process's random-number generators: torch's and, if in use,
Megatron-core's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

_PREFIX = "megatron."


def _tracker() -> Any:
    """Return Megatron-core's tracker, or None in a process that never imported it.

    It is looked up in `sys.modules`: importing our engine would install the CPU shim, and a program
    with its own model may have imported Megatron-core without it.
    """
    megatron = sys.modules.get("megatron.core.tensor_parallel")
    return None if megatron is None else megatron.get_cuda_rng_tracker()


def generator_states() -> dict[str, torch.Tensor]:
    """Return the states of this rank's generators, as uint8 tensors."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    tracker = _tracker()
    tracked = {} if tracker is None else tracker.get_states()
    return states | {f"{_PREFIX}{name}": state for name, state in tracked.items()}


def restore_generators(states: Mapping[str, torch.Tensor]) -> None:
    """Restore states that `generator_states` returned on this rank."""
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    tracker = _tracker()
    tracked = {n.removeprefix(_PREFIX): s for n, s in states.items() if n.startswith(_PREFIX)}
    if tracker is not None and tracked:
        tracker.set_states(tracked)
