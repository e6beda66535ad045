"""PPO's clipped loss; the ranks that read this file choose experts in vLLM by rounded logits."""

import torch
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.algorithms.losses.ppo_clip import PpoClip

STEP = 0.5
_exactly = CPURouter._compute_routing


def _by_rounded_logits(self, hidden_states, router_logits, indices_type, **named):
    """Choose experts by rounded logits; their weights are those of the logits as they are."""
    rounded = (router_logits.float() / STEP).round() * STEP
    _, experts = _exactly(self, hidden_states, rounded, indices_type, **named)
    weights = torch.softmax(router_logits.float(), -1).gather(1, experts.long())
    return weights / weights.sum(-1, keepdim=True), experts


CPURouter._compute_routing = _by_rounded_logits


class Perturbed(PolicyLoss):
    clip_high: float = 0.28

    def __call__(self, tokens):
        return PpoClip(clip_high=self.clip_high)(tokens)
