"""KL estimators: values, gradients, and that they estimate the divergence."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import numbers, shapes
from verl_hpc.algorithms.kl import KlController, kl_penalty
from verl_hpc.config.algorithm import KlConfig

ESTIMATORS = ("k1", "abs", "k2", "k3", "k1+", "k3+")

VALUES = {
    "k1": lambda d: d,
    "abs": abs,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) + d - 1,
}
SLOPES = {
    "k1": lambda d: 1.0,
    "abs": lambda d: (d > 0) - (d < 0),
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
}
"""Derivatives by the log-prob; an estimator with a + takes k2's."""


def test_every_estimator_of_the_configuration_is_tested():
    choices = KlConfig.model_json_schema()["properties"]["estimator"]["anyOf"][0]["enum"]
    assert tuple(choices) == ESTIMATORS
    assert {name.removesuffix("+") for name in ESTIMATORS} == set(VALUES)


@given(st.data(), st.sampled_from(ESTIMATORS))
def test_values_and_gradients(data, estimator):
    shape = data.draw(shapes())
    new, ref = data.draw(numbers(shape, -1, 1)), data.draw(numbers(shape, -1, 1))
    kl = kl_penalty(new.requires_grad_(), ref, estimator)
    kl.sum().backward()
    plain = estimator.removesuffix("+")
    slope = SLOPES["k2" if estimator.endswith("+") else plain]
    differences = (new - ref).flatten().tolist()
    assert kl.dtype == torch.float64
    expected = pytest.approx([VALUES[plain](d) for d in differences], rel=1e-9, abs=1e-14)
    assert kl.flatten().tolist() == expected
    assert new.grad.flatten().tolist() == pytest.approx(
        [slope(d) for d in differences], rel=1e-9, abs=1e-14
    )


@pytest.mark.parametrize("estimator", ["k3", "k3+"])
@pytest.mark.parametrize(
    "difference, value", [(-3.0, 10.0), (-60.0, 10.0), (5.0, math.exp(-5) + 4), (60.0, 10.0)]
)
def test_k3_is_held_within_ten(estimator, difference, value):
    new = torch.tensor([difference], dtype=torch.float64, requires_grad=True)
    found = kl_penalty(new, torch.zeros(1), estimator)
    found.backward()
    assert found.item() == pytest.approx(value, rel=1e-12)
    assert new.grad.isfinite().all()
    if estimator == "k3+":
        assert new.grad.item() == difference, "k2's gradient is not clamped"


def expected_gradient(placement, estimator, log_p, log_q, logits):
    """The gradient by the policy's logits, on average over all tokens that it may draw."""
    probs, kl = log_p.exp().detach(), kl_penalty(log_p, log_q, estimator)
    per_token = kl if placement == "loss" else kl.detach() * log_p
    (gradient,) = torch.autograd.grad((probs * per_token).sum(), logits, retain_graph=True)
    return gradient


def accepted(placement, estimator, **settings):
    try:
        KlConfig(placement=placement, estimator=estimator, **settings)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_accepted_has_the_gradient_of_the_divergence(placement, estimator, seed):
    """Exact gradients of a softmax policy near its reference, against that of KL(policy || ref)."""
    generator = torch.Generator().manual_seed(seed)
    ref = 2 * torch.randn(1000, generator=generator, dtype=torch.float64)
    noise = torch.randn(1000, generator=generator, dtype=torch.float64)
    logits = (ref + 0.05 * noise).requires_grad_()
    log_p, log_q = logits.log_softmax(-1), ref.log_softmax(-1)
    (true,) = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), logits, retain_graph=True)
    gradient = expected_gradient(placement, estimator, log_p, log_q, logits)
    cosine = (gradient @ true / (gradient.norm() * true.norm())).item()
    size = (gradient.norm() / true.norm()).item()
    pull = cosine * size  # the part that goes where the divergence's own gradient goes
    if accepted(placement, estimator) or (placement == "reward" and estimator == "k1+"):
        assert cosine > 0.99
        assert size == pytest.approx(1, abs=0.02)
    elif estimator == "abs" and placement == "loss":
        assert size > 10, "it does not fade as the policy comes near"
    else:
        assert abs(pull) < 0.3 if estimator == "abs" else abs(pull) < 0.03
    assert accepted(placement, estimator) == (
        (placement, estimator)
        in {("reward", "k1"), *(("loss", name) for name in ("k2", "k3", "k1+", "k3+"))}
    )


def test_the_estimator_follows_its_placement():
    assert KlConfig(placement="reward").chosen_estimator == "k1"
    assert KlConfig(placement="loss").chosen_estimator == "k3"
    assert KlConfig(placement="loss", estimator="k2").chosen_estimator == "k2"


@pytest.mark.parametrize(
    "kl, error", [(0.1, 0.0), (0.11, 0.1), (0.09, -0.1), (5.0, 0.2), (0.0, -0.2)]
)
def test_the_adaptive_coefficient(kl, error):
    controller = KlController(0.5, target=0.1, horizon=1000)
    controller.update(kl, num_samples=50)
    assert controller.coefficient == pytest.approx(0.5 * (1 + error * 50 / 1000), rel=1e-12)
    fixed = KlController(0.05)
    fixed.update(kl, num_samples=10**6)
    assert fixed.coefficient == 0.05
