"""PPO's clipped loss, which counts the clamped ratios that are beyond NeMo-RL's bounds."""

from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.algorithms.losses.ppo_clip import PpoClip

LOW, HIGH = 0.79, 1.21


class Ratios(PolicyLoss):
    def __call__(self, tokens):
        losses, metrics = PpoClip()(tokens)
        ratio = tokens.log_ratio.exp().detach()
        for name, values in (("clamped", ratio.clamp(0.8, 1.2)), ("unclamped", ratio)):
            beyond = (values < LOW) | (values > HIGH)
            metrics[f"{name}_ratios_beyond"] = (beyond * tokens.mask).sum()
        return losses, metrics
