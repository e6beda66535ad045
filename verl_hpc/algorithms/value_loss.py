"""The critic's clipped squared error."""

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
