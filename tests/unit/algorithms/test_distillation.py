"""The forward KL on a teacher's likeliest tokens against loops in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.algorithms.role_losses import forward_kl


@st.composite
def cases(draw):
    """Logits of teacher and student, (tokens, vocabulary), and k."""
    tokens, vocab = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.1, 1.0, 3.0]))
    shape = (2, tokens, vocab)
    logits = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    return *logits, draw(st.integers(1, vocab))


def found_of(teacher, student, k):
    """(tokens,), from logits."""
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    top = log_p.topk(k)
    return forward_kl(top.values, log_q.gather(-1, top.indices))


def slow(teacher, student, k):
    """One token after another; the student's logits are leaves."""
    divergences = []
    for p, logits in zip(teacher.softmax(-1), student, strict=True):
        q = logits.exp() / logits.exp().sum()
        likeliest = sorted(range(len(p)), key=lambda i: -float(p[i]))[:k]
        others = [i for i in range(len(p)) if i not in likeliest]
        total = sum(p[i] * (p[i] / q[i]).log() for i in likeliest)
        if others:
            rest = sum(p[i] for i in others)
            total = total + rest * (rest / sum(q[i] for i in others)).log()
        divergences.append(total)
    return torch.stack(divergences)


@given(cases())
def test_values_and_gradients_are_those_of_a_loop(case):
    teacher, student, k = case
    weights = torch.linspace(-1, 2, len(teacher), dtype=torch.float64)
    results = []
    for kl in (found_of, slow):
        leaf = student.clone().requires_grad_()
        values = kl(teacher, leaf, k)
        (values * weights).sum().backward()
        results.append((values, leaf.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@given(cases())
def test_it_is_a_divergence_and_no_larger_than_that_of_all_tokens(case):
    teacher, student, k = case
    whole = (teacher.softmax(-1) * (teacher.log_softmax(-1) - student.log_softmax(-1))).sum(-1)
    found = found_of(teacher, student, k)
    assert (found >= -1e-12).all() and (found <= whole + 1e-9).all()
    every = found_of(teacher, student, teacher.shape[-1])
    torch.testing.assert_close(every, whole, rtol=1e-9, atol=1e-9)
    same = found_of(teacher, teacher, k)
    torch.testing.assert_close(same, torch.zeros_like(same), rtol=0, atol=1e-9)


def test_of_one_token_it_is_that_of_a_coin():
    """Divided by the sum of one probability it would always be 0."""
    teacher, student = torch.tensor([[0.8, 0.1, 0.1]]).log(), torch.tensor([[0.5, 0.1, 0.4]]).log()
    expected = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    assert float(found_of(teacher, student, 1)) == pytest.approx(expected)


@pytest.mark.parametrize("peak", [20.0, 60.0, 1000.0])
@pytest.mark.parametrize("teachers", [0.5, 60.0])
def test_float32_has_no_number_for_the_rest_of_a_sure_student(peak, teachers):
    teacher = torch.tensor([[1.0, 0.5, 0.0, -0.5]]) * teachers
    student = torch.tensor([[peak, 0.0, 0.0, 0.0]], requires_grad=True)
    found = found_of(teacher, student, 2)
    found.sum().backward()
    assert torch.isfinite(found).all()
    # The whole KL's gradient is q - p: at most 1 each way.
    assert student.grad.abs().max() < 1.5
