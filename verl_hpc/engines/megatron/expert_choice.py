"""The experts that a router chooses by its scores."""

from __future__ import annotations

import torch


def best_experts(
    scores: torch.Tensor, k: int, num_groups: int | None, groups_per_token: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores and ids of each token's k best experts, (t, k) each.

    With groups, only experts of the token's best groups are chosen; a group is as good as its two
    best experts together (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Megatron-core's own takes
    k / groups_per_token experts in place of two.

    Args:
        scores: (t, experts), with the experts' bias; groups are equal runs of neighbours.
        k: experts per token.
        num_groups: number of groups; None or 1 has all experts in one.
        groups_per_token: how many groups a token's experts may be of.
    """
    if num_groups and groups_per_token and groups_per_token < num_groups:
        by_group = scores.view(len(scores), num_groups, -1)
        worth = by_group.detach().topk(min(2, by_group.shape[-1])).values.sum(-1)
        best = worth.topk(groups_per_token).indices
        is_out = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
        scores = by_group.masked_fill(is_out[..., None], float("-inf")).view_as(scores)
    values, chosen = scores.topk(k)
    return values, chosen
