"""GSPO and GMPO: ratios of whole sequences, from products over their tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.micro_batches import agrees, micro_batches, of_token
from verl_hpc.algorithms.losses.gmpo import Gmpo
from verl_hpc.algorithms.losses.gspo import Gspo


def gspo(loss):
    """The gradient of a token's loss is that of the sequence's ratio, as if it were its own."""

    def of_sequence(old, new, advantages):
        product = math.prod(math.exp(n.item() - o) for o, n in zip(old, new, strict=True))
        mean = product ** (1 / len(new)) if new else 1.0
        losses, clipfrac = [], 0
        for after, a in zip(new, advantages, strict=True):
            ratio = min(mean, math.exp(10.0))
            value = -a * ratio * (1 + after - float(after))
            clipped = -a * min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
            if mean > math.exp(10.0):
                value = value.detach()
            if clipped > float(value):
                clipfrac += 1
                value = torch.tensor(clipped, dtype=torch.float64)
            losses.append(value)
        kl = sum(o - float(n) for o, n in zip(old, new, strict=True))
        return losses, {"pg_clipfrac": clipfrac, "ppo_kl": kl}

    return of_sequence


@given(micro_batches(0.02) | micro_batches(), st.sampled_from([{}, {"clip_low": 0.2}]), st.data())
def test_gspo_against_products(batch, options, data):
    loss = Gspo(**options)
    agrees(loss, gspo(loss), batch, data)


def gmpo(loss):
    def of_sequence(old, new, advantages):
        count = max(len(new), 1)
        total, clipped, lower = torch.zeros((), dtype=torch.float64), 0, 0
        for before, after, a in zip(old, new, advantages, strict=True):
            log_ratio = after - before
            is_outside = not -loss.clip_low <= float(log_ratio) <= loss.clip_high
            clipped, lower = clipped + (a > 0 and is_outside), lower + (a < 0 and is_outside)
            if a > 0 and float(log_ratio) > loss.clip_high:
                log_ratio = loss.clip_high
            elif a < 0 and float(log_ratio) < -loss.clip_low:
                log_ratio = -loss.clip_low
            elif a == 0:
                log_ratio = 0.0
            total = total + log_ratio
        ratio, mean = torch.exp(total / count), sum(advantages) / count
        kl = sum(o - float(n) for o, n in zip(old, new, strict=True))
        sums = {"pg_clipfrac": clipped, "pg_clipfrac_lower": lower, "ppo_kl": kl}
        return [-mean * ratio] * len(new), sums

    return of_sequence


@given(micro_batches(), st.sampled_from([{}, {"clip_low": 0.1, "clip_high": 1.0}]), st.data())
def test_gmpo_against_sums(batch, options, data):
    loss = Gmpo(**options)
    agrees(loss, gmpo(loss), batch, data)


def test_a_ratio_of_one_has_the_policy_gradient():
    for loss in (Gspo(), Gmpo()):
        assert of_token(loss, -1.0, -1.0, 0.7) == pytest.approx((-0.7, -0.7))
        assert loss.aggregation == "seq-mean-token-mean"
