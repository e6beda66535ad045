"""Random-number generators of the process, which all layouts share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from megatron.core import tensor_parallel

_PREFIX = "megatron."


def seed_generators(seed: int, tp_rank: int) -> None:
    """Seed the device's generator and Megatron-core's, of which some differ over `tp_rank`.

    Nothing draws from the latter while dropout is 0, so one set will do for layouts that put this
    rank at different places.
    """
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed, tp_rank=tp_rank, ep_rank=0, etp_rank=tp_rank
    )


def generator_states() -> dict[str, torch.Tensor]:
    """States of this rank's generators, as uint8 tensors."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    tracked = tensor_parallel.get_cuda_rng_tracker().get_states()
    return states | {f"{_PREFIX}{name}": state for name, state in tracked.items()}


def restore_generators(states: Mapping[str, torch.Tensor]) -> None:
    """Put back what `generator_states` gave on this rank."""
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    tracked = {n.removeprefix(_PREFIX): s for n, s in states.items() if n.startswith(_PREFIX)}
    tensor_parallel.get_cuda_rng_tracker().set_states(tracked)
