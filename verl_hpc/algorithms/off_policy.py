"""How far the policy that sampled is from the one that trains, by what it sampled."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.log_ratio import bounded
from verl_hpc.algorithms.masked import Reduce, alone


def off_policy(
    rollout_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    mask: torch.Tensor,
    reduce: Reduce = alone,
) -> dict[str, float]:
    """Estimates over all tokens that count, the same on every rank; all arguments are (B, T).

    With d = log_prob - rollout of a token, and r = exp(d) with d clamped to +-20:

    kl          mean of -d: KL(sampled || trained), Schulman's k1
    k3_kl       mean of exp(d) - d - 1, his k3; neither is clamped
    chi2_token  mean of r^2, less 1
    chi2_seq    mean over sequences of the square of the product of r, less 1
    ppl_ratio   mean over sequences of exp(-mean d): the trainer's perplexity by the engine's
    eff_sample_size  (sum r)^2 / (n sum r^2): the share of tokens that weights r leave

    Source: verl's rollout_corr metrics, whose eff_sample_size bounds r first.
    """
    counts = mask.bool()
    wide = torch.where(counts, log_probs.double() - rollout_log_probs.double(), 0)
    ratio = torch.where(counts, bounded(wide).exp(), 0)
    lengths = counts.sum(-1)
    some = lengths > 0
    of_sequence = bounded(wide.sum(-1))
    mean = wide.sum(-1) / lengths.clamp(min=1)
    # One reduction over ranks for all sums; means are taken of the totals.
    sums = [
        counts.sum().to(wide),
        some.sum().to(wide),
        -wide.sum(),
        (wide.exp() - wide - 1).sum(),
        ratio.sum(),
        (ratio**2).sum(),
        torch.where(some, (2 * of_sequence).exp(), 0).sum(),
        torch.where(some, (-mean).exp(), 0).sum(),
    ]
    num_tokens, num_sequences, k1, k3, first, second, chi2, ppl = reduce(torch.stack(sums)).tolist()
    tokens, sequences = max(num_tokens, 1.0), max(num_sequences, 1.0)
    return {
        "kl": k1 / tokens,
        "k3_kl": k3 / tokens,
        "chi2_token": second / tokens - 1,
        "chi2_seq": chi2 / sequences - 1,
        "ppl_ratio": ppl / sequences,
        "eff_sample_size": first**2 / (tokens * second) if second else 1.0,
    }
