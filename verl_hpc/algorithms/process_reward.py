"""Loss of an implicit process reward model, which learns whether a response's outcome is good."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch


def outcome_cross_entropy(rewards: torch.Tensor, outcomes: torch.Tensor) -> torch.Tensor:
    """Losses of responses, (B,): -y log sigmoid(r) - (1 - y) log sigmoid(-r) (arXiv
    2502.01456).

    Args:
        rewards: (B,) r, sums of process rewards: beta (log pi_prm - log pi_ref) of the tokens.
        outcomes: (B,) y, scores between 0 and 1.
    """
    return torch.nn.functional.softplus(rewards) - outcomes * rewards
