"""Random-number generators of the process: torch's, and Megatron-core's where that is in use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

_PREFIX = "megatron."


def _tracker() -> Any:
    """Megatron-core's, or None: who never imported it has drawn nothing from it.

    Not by our engine, which would fit Megatron-core to CPUs: a program with a model of its own may
    have imported it as it is.
    """
    megatron = sys.modules.get("megatron.core.tensor_parallel")
    return None if megatron is None else megatron.get_cuda_rng_tracker()


def generator_states() -> dict[str, torch.Tensor]:
    """States of this rank's generators, as uint8 tensors."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    tracker = _tracker()
    tracked = {} if tracker is None else tracker.get_states()
    return states | {f"{_PREFIX}{name}": state for name, state in tracked.items()}


def restore_generators(states: Mapping[str, torch.Tensor]) -> None:
    """Put back what `generator_states` gave on this rank."""
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    tracker = _tracker()
    tracked = {n.removeprefix(_PREFIX): s for n, s in states.items() if n.startswith(_PREFIX)}
    if tracker is not None and tracked:
        tracker.set_states(tracked)
