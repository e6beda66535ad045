"""ReMax: REINFORCE with the reward of the greedy answer as baseline (arXiv 2310.10505)."""

from __future__ import annotations

import torch


def remax(
    rewards: torch.Tensor, baselines: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both (B, T) and 0 outside the mask.

    The return of a token is the sum of the rewards from it on; its advantage is what is left of it
    without the reward of the greedy answer to the same prompt (arXiv 2310.10505, algorithm 1, whose
    one reward comes with the last token).

    Args:
        rewards: (B, T) reward of each token.
        baselines: (B,) reward of the greedy answer to each response's prompt.
        mask: (B, T).
    """
    returns = (rewards * mask).flip(-1).cumsum(-1).flip(-1) * mask
    return returns - baselines[:, None] * mask, returns
