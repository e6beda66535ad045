"""CISPO, SAPO, GPG, DRO and DPPO, token by token."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.algorithms.micro_batches import agrees, each, micro_batches, of_token
from verl_hpc.algorithms.losses.cispo import Cispo
from verl_hpc.algorithms.losses.dppo import Dppo
from verl_hpc.algorithms.losses.dro import Dro
from verl_hpc.algorithms.losses.gpg import Gpg
from verl_hpc.algorithms.losses.sapo import Sapo


@given(micro_batches(), st.sampled_from([{}, {"clip_low": 0.2}, {"clip_high": 3.0}]), st.data())
def test_cispo(batch, options, data):
    loss = Cispo(**options)

    def term(before, after, a, log_ratio):
        ratio = math.exp(float(log_ratio))
        weight = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
        return -weight * a * after, -float(log_ratio), ratio != weight

    agrees(loss, each(("ppo_kl", "pg_clipfrac"), term), batch, data)


def test_cispo_clips_weights_and_no_gradient():
    assert of_token(Cispo(), 0.0, -1e-3 + math.log(4.0), 2.0)[1] == pytest.approx(-2.0 * 1.28)


@given(
    micro_batches(), st.sampled_from([{}, {"tau_positive": 0.5, "tau_negative": 10.0}]), st.data()
)
def test_sapo(batch, options, data):
    loss = Sapo(**options)

    def term(before, after, a, log_ratio):
        tau = loss.tau_positive if a > 0 else loss.tau_negative
        gate = 1 / (1 + torch.exp(-tau * (torch.exp(log_ratio) - 1))) * 4 / tau
        return -a * gate, -float(log_ratio)

    agrees(loss, each(["ppo_kl"], term), batch, data)


def test_sapo_is_on_policy_the_policy_gradient():
    """sigmoid has slope 1/4 at 0."""
    assert of_token(Sapo(), -1.0, -1.0, 0.7)[1] == pytest.approx(-0.7)


@given(micro_batches(), st.data())
def test_gpg(batch, data):
    agrees(Gpg(), each([], lambda old, new, a, log_ratio: (-a * new,)), batch, data)


@given(micro_batches(), st.sampled_from([0.05, 2.0]), st.data())
def test_dro(batch, beta, data):
    def term(before, after, a, _):
        move = after - before
        return -a * after + beta / 2 * move**2, -float(move)

    agrees(Dro(beta=beta), each(["ppo_kl"], term), batch, data)


def divergence(kind, before, after):
    p, q = math.exp(before), math.exp(after)
    if kind == "tv":
        return 0.5 * (abs(p - q) + abs((1 - p) - (1 - q)))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@given(
    micro_batches(),
    st.sampled_from([{}, {"divergence": "kl"}, {"threshold": 0.01, "max_ratio": 1.5}]),
    st.data(),
)
def test_dppo(batch, options, data):
    loss = Dppo(**options)
    threshold = loss.threshold or {"tv": 0.15, "kl": 0.05}[loss.divergence]
    for old, new in zip(batch[0].flatten().tolist(), batch[1].flatten().tolist(), strict=True):
        assume(abs(divergence(loss.divergence, old, new) - threshold) > 1e-9)

    def term(before, after, a, log_ratio):
        further = (a > 0 and after > before) or (a < 0 and after < before)
        outside = further and divergence(loss.divergence, before, float(after)) > threshold
        ratio = math.exp(float(log_ratio))
        value = 0.0 * after if outside else -a * min(ratio, loss.max_ratio) * after
        return value, outside, not outside and ratio > loss.max_ratio, -float(log_ratio)

    agrees(loss, each(("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"), term), batch, data)


def test_dppo_bounds_the_ratio_of_a_rare_token():
    """From 1e-5 to 1e-2 it moves little probability, and its ratio is 1000."""
    old, new = math.log(1e-5), math.log(1e-2)
    assert of_token(Dppo(), old, new, 1.0)[1] == pytest.approx(-20.0)
    assert of_token(Dppo(max_ratio=3.0), old, new, 1.0)[1] == pytest.approx(-3.0)


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_dppo_of_a_sure_token_is_finite(kind):
    assert all(map(math.isfinite, of_token(Dppo(divergence=kind), 0.0, -1e-9, 1.0)))
