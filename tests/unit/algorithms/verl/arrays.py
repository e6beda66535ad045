"""Random arrays of eight responses to three prompts, the same wherever they are made."""

from __future__ import annotations

import numpy as np
import torch

LENGTHS = [5, 3, 6, 2, 4, 4, 1, 6]
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2]
WIDTH = max(LENGTHS)
DIVERGENCES = [0.02, 0.11, 0.4, 0.095, 0.0]
"""Mean KL of batches that follow each other."""


def arrays() -> dict[str, torch.Tensor]:
    """(B, T) float64 each; of responses (B,)."""
    generator = np.random.default_rng(20260125)
    shape = (len(LENGTHS), WIDTH)

    def uniform(low, high, size=shape):
        return torch.from_numpy(generator.uniform(low, high, size))

    mask = (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]).double()
    scores = uniform(-1, 2, len(LENGTHS))
    rewards = torch.zeros(shape, dtype=torch.float64)
    rewards[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] = scores
    old = uniform(-3, -0.05)
    squares = old.exp() ** 2 + uniform(0, 1) * (1 - old.exp()) ** 2
    return {
        "mask": mask,
        "scores": scores,
        "rewards": rewards,
        "groups": torch.tensor(GROUPS),
        "greedy": uniform(0, 1, len(LENGTHS)),
        "values": uniform(-1, 1) * mask,
        "part_a": uniform(0, 1, len(LENGTHS)).float(),
        "part_b": uniform(0, 1, len(LENGTHS)).float(),
        "old": old,
        "new": (old + uniform(-1.5, 1.5)).clamp(max=-0.01),
        "squares": squares,
        "advantages": uniform(-2, 2),
        "weights": uniform(0.2, 2),
    }


def far(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probs (B, T) of the trainer, a few of which are far below those of the engine."""
    moved = given["new"].clone()
    moved[0, 1] -= 30.0
    moved[2, 3] -= 200.0
    return moved


def is_plain(value: object) -> bool:
    return isinstance(value, float | int | str)
