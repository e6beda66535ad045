"""Losses of a critic, of a process reward model and of a teacher's student, term by term."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import agree, masks, numbers, shapes
from verl_hpc.algorithms.distillation import forward_kl
from verl_hpc.algorithms.process_reward import outcome_cross_entropy
from verl_hpc.algorithms.value_loss import clipped_value_loss


@st.composite
def values_of_tokens(draw):
    """(values, old, returns, mask), (B, T) each."""
    shape = draw(shapes())
    return *(draw(numbers(shape)) for _ in range(3)), draw(masks(shape))


@given(values_of_tokens(), st.sampled_from([None, 0.2, 0.5, 2.0]))
def test_the_critics_loss(batch, clip):
    values, old, returns, mask = batch
    counted, told = [], {}

    def ours(values):
        losses, metrics = clipped_value_loss(values, old, returns, mask, clip)
        assert not metrics["vf_clipfrac"].requires_grad
        told.update(metrics)
        return torch.where(mask.bool(), losses, 0)

    def theirs(leaves):
        given = zip(leaves, *(x.flatten().tolist() for x in (old, returns, mask)), strict=True)
        losses = []
        for value, before, target, counts in given:
            near = value
            if clip is not None and abs(float(value) - before) > clip:
                near = min(max(float(value), before - clip), before + clip)
                near = torch.tensor(near, dtype=torch.float64)
            plain, clipped = (value - target) ** 2, (near - target) ** 2
            assume(near is value or abs(float(plain - clipped)) > 1e-6)
            is_clipped = float(clipped) > float(plain)
            counted.append(bool(counts) and is_clipped)
            losses.append(counts * 0.5 * (clipped if is_clipped else plain))
        return losses

    agree(ours, theirs, values)
    assert told["vf_clipfrac"] == sum(counted)


def test_a_value_clipped_on_its_way_to_the_target_stops():
    """And one that moved away from the target still gets its gradient."""
    values = torch.tensor([[1.0, -1.0]], requires_grad=True)
    old, returns = torch.zeros(1, 2), torch.full((1, 2), 2.0)
    losses, metrics = clipped_value_loss(values, old, returns, torch.ones(1, 2), 0.5)
    losses.sum().backward()
    assert losses.tolist() == [[0.5 * 1.5**2, 0.5 * 3**2]] and losses.dtype == torch.float32
    assert (values.grad.tolist(), metrics["vf_clipfrac"]) == ([[0.0, -3.0]], 1)


def test_the_cross_entropy_of_an_outcome():
    for reward in (-800.0, -1.5, 0.0, 2.0, 800.0):
        for outcome in (0.0, 0.3, 1.0):
            leaf = torch.tensor([reward], dtype=torch.float64, requires_grad=True)
            loss = outcome_cross_entropy(leaf, torch.tensor([outcome], dtype=torch.float64))
            loss.sum().backward()
            # log(1 + exp(800)) is 800.
            of_right, of_wrong = (
                x if x > 100 else math.log1p(math.exp(x)) for x in (-reward, reward)
            )
            expected = outcome * of_right + (1 - outcome) * of_wrong
            assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
            chance = 1 / (1 + math.exp(min(-reward, 700)))
            assert leaf.grad.item() == pytest.approx(chance - outcome, rel=1e-9, abs=1e-12)


@st.composite
def distributions(draw):
    """Logits of teacher and student, (tokens, vocabulary), and k."""
    tokens, vocab = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    logits = draw(st.sampled_from([0.1, 1.0, 3.0])) * draw(numbers((2, tokens, vocab), -1.5, 1.5))
    return *logits, draw(st.integers(1, vocab))


def of_logits(teacher, student, k):
    """(tokens,)"""
    log_p, log_q = teacher.log_softmax(-1), student.log_softmax(-1)
    top = log_p.topk(k)
    return forward_kl(top.values, log_q.gather(-1, top.indices))


@given(distributions())
def test_the_forward_kl_of_the_likeliest_tokens(case):
    teacher, student, k = case

    def theirs(leaves):
        divergences = []
        for i, p in enumerate(teacher.softmax(-1).tolist()):
            logits = leaves[i * len(p) : (i + 1) * len(p)]
            total = sum(x.exp() for x in logits)
            q = [x.exp() / total for x in logits]
            likeliest = sorted(range(len(p)), key=lambda j: -p[j])[:k]
            others = [j for j in range(len(p)) if j not in likeliest]
            value = sum(p[j] * torch.log(p[j] / q[j]) for j in likeliest)
            if others:
                rest = sum(p[j] for j in others)
                value = value + rest * torch.log(rest / sum(q[j] for j in others))
            divergences.append(value)
        return divergences

    agree(lambda student: of_logits(teacher, student, k), theirs, student)


def test_float32_has_no_number_for_the_rest_of_a_sure_student():
    for peak in (20.0, 60.0, 1000.0):
        for teachers in (0.5, 60.0):
            teacher = torch.tensor([[1.0, 0.5, 0.0, -0.5]]) * teachers
            student = torch.tensor([[peak, 0.0, 0.0, 0.0]], requires_grad=True)
            found = of_logits(teacher, student, 2)
            found.sum().backward()
            assert torch.isfinite(found).all()
            # The whole KL's gradient is q - p: at most 1 each way.
            assert student.grad.abs().max() < 1.5
