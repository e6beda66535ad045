"""Losses of roles that learn without advantages: a critic, a process reward model, a student."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import masked_sum


def clipped_value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    clip: float | None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses of tokens, (B, T), and the sum vf_clipfrac over the mask.

    0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), as verl's critic; without `clip`
    0.5 (v - R)^2. All arguments are (B, T); `values` is differentiable.
    """
    plain = (values - returns) ** 2
    if clip is None:
        return 0.5 * plain, {"vf_clipfrac": values.new_zeros(())}
    near = torch.clamp(values, old_values - clip, old_values + clip)
    clipped = (near - returns) ** 2
    fraction = masked_sum((clipped > plain).to(values), mask).detach()
    return 0.5 * torch.maximum(plain, clipped), {"vf_clipfrac": fraction}


def outcome_cross_entropy(rewards: torch.Tensor, outcomes: torch.Tensor) -> torch.Tensor:
    """Losses of responses, (B,): -y log sigmoid(r) - (1 - y) log sigmoid(-r) (arXiv
    2502.01456).

    Args:
        rewards: (B,) r, sums of process rewards: beta (log pi_prm - log pi_ref) of the tokens.
        outcomes: (B,) y, scores between 0 and 1.
    """
    return torch.nn.functional.softplus(rewards) - outcomes * rewards


def forward_kl(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) over the teacher's k likeliest tokens, and all others as one.

        sum_i p_i (log p_i - log q_i) + p_rest (log p_rest - log q_rest), p_rest = 1 - sum_i p_i

    It is never above the KL divergence of the whole distributions, and equal to it where k is the
    size of the vocabulary. Without the rest it would be no divergence: below 0 where the student
    gives each of the k more than the teacher does. Divided by their sums instead, what the student
    gives to other tokens would cost nothing.

    Source: the forward KL of GKD (arXiv 2306.13649, section 3) on k tokens and the rest.

    Args:
        teacher: (..., k) log-probs of k different tokens, without gradient.
        student: (..., k) log-probs of the same tokens; differentiable.

    Returns:
        (...), in nats; its gradient is that of the student's log-probs.
    """
    rest, mine = _log_rest(teacher), _log_rest(student)
    of_tokens = (teacher.exp() * (teacher - student)).sum(-1)
    return of_tokens + rest.exp() * (rest - mine)


def _log_rest(log_probs: torch.Tensor) -> torch.Tensor:
    """(..., k) to (...): log of the probability that is left, no smaller than numbers resolve."""
    rest = 1 - log_probs.exp().sum(-1)
    return (rest.clamp(min=0) + torch.finfo(log_probs.dtype).eps).log()
