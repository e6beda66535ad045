"""What a teacher says of responses, and steps towards it, against float64."""

import pytest
import torch

from tests.unit.config.trees import parse
from tests.unit.step.operators.batches import (
    MASKS,
    NUM_TOKENS,
    PLACE,
    PROMPTS,
    RESPONSES,
    column,
    outputs_of,
    per_token,
    role,
    samples,
    sequences,
)
from tests.unit.step.operators.test_update import SMALL, ppo_term, same, slow
from tests.unit.step.operators.test_update import policy as policy_settings
from verl_hpc.config.algorithm import AlgorithmConfig, ForwardKl, ReverseKl
from verl_hpc.step.operators.distillation import StudentSettings, follow, grade, update_student

TEMPERATURE = 0.7


def exact(model, i):
    """Log-probs of the whole vocabulary at each response token of sample i, in float64."""
    engine, tokens = model.training, sequences()["tokens"][i]
    engine.weights = {name: weight.double() for name, weight in engine.weights.items()}
    found = outputs_of(engine, tokens)
    start = len(PROMPTS[i])
    return [(f / TEMPERATURE).log_softmax(-1) for f in found[start - 1 : len(tokens) - 1]]


def sampled(model):
    """Log-probs of the response tokens of all samples."""
    return [
        torch.stack([row[token] for row, token in zip(exact(model, i), RESPONSES[i], strict=True)])
        for i in range(3)
    ]


def forward_kl(top_k=None):
    distillation = ReverseKl() if top_k is None else ForwardKl(top_k=top_k)
    config = parse(rollout={"num_samples": 4, "temperature": TEMPERATURE})
    return config.model_copy(update={"distillation": distillation})


def test_a_teacher_grades_tokens_and_names_its_likeliest():
    teacher = role("teacher", seed=5)
    found, _ = grade(PLACE, teacher, forward_kl(3), samples(), sequences())
    assert found.widths == {"teacher_top_tokens": 3, "teacher_top_log_probs": 3}
    for i, row in enumerate(sampled(role("teacher", seed=5))):
        torch.testing.assert_close(found["teacher_log_probs"][i], row.float())
        top = torch.stack(exact(role("teacher", seed=5), i)).topk(3)
        assert torch.equal(found["teacher_top_tokens"][i], top.indices.int())
        torch.testing.assert_close(found["teacher_top_log_probs"][i], top.values.float())
    plain, _ = grade(PLACE, teacher, forward_kl(), samples(), sequences())
    assert set(plain.values) == {"teacher_log_probs"} and not plain.widths


@pytest.mark.parametrize(
    "settings",
    [ReverseKl(), ReverseKl(task_reward_weight=0.5), ReverseKl(clamp=0.4), ForwardKl(clamp=0.4)],
)
def test_a_token_earns_how_much_likelier_it_is_to_the_teacher(settings):
    old, graded = sampled(role()), sampled(role("teacher", seed=5))
    earned = column(advantages=per_token(3)) if settings.task_reward_weight else None
    columns = column(old_log_probs=old), column(teacher_log_probs=graded), earned
    columns_back, metrics = follow(PLACE, settings, sequences(), *columns)
    leads = [
        [float(g - o) * m for o, g, m in zip(*rows, strict=True)]
        for rows in zip(old, graded, MASKS, strict=True)
    ]
    for i, row in enumerate(columns_back["advantages"]):
        expected = torch.tensor(leads[i]) * (settings.name == "reverse_kl")
        if settings.clamp is not None:
            expected = expected.clamp(-settings.clamp, settings.clamp)
        if earned is not None:
            expected = expected + 0.5 * earned["advantages"][i]
        torch.testing.assert_close(row.float(), expected)
    kl = -sum(map(sum, leads)) / NUM_TOKENS
    assert metrics == {"distillation/reverse_kl": pytest.approx(kl, abs=1e-6)}
    assert abs(kl) > 0.01


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("earns", [False, True])
@pytest.mark.parametrize("bounds", [{}, {"rest": False, "min_log_prob": -2.0, "clamp": 0.7}])
def test_a_student_follows_its_teachers_likeliest_tokens(mode, k, earns, bounds):
    actor = role(optimizer=SMALL)
    graded, _ = grade(PLACE, role("teacher", seed=5), forward_kl(k), samples(), sequences())
    old = [row.float() for row in sampled(role())]
    advantages = [row * earns for row in per_token(6)]
    algorithm = AlgorithmConfig()
    distributions = [exact(role("teacher", seed=5), i) for i in range(3)]
    policy = ppo_term(algorithm, old, advantages)

    def kl(i, t, output):
        log_p = distributions[i][t].float()
        likeliest = set(log_p.topk(k).indices.tolist())
        if bounds:
            p, q = (x.clamp(min=bounds["min_log_prob"]) for x in (log_p, output))
            total = sum(p[v].exp() * (p[v] - q[v]) for v in likeliest)
            return total.clamp(0, bounds["clamp"])
        total = sum(log_p[v].exp() * (log_p[v] - output[v]) for v in likeliest)
        others = [v for v in range(12) if v not in likeliest]
        if others:
            rest, mine = (x[others].exp().sum() for x in (log_p, output))
            total = total + rest * (rest / mine).log()
        return total

    def term(i, t, output):
        return kl(i, t, output) + policy(i, t, output)

    expected, gradients = slow(actor.training, term, mode, temperature=TEMPERATURE)
    forward, _ = slow(role().training, kl, mode, temperature=TEMPERATURE)
    chosen = policy_settings(algorithm, mode, temperature=TEMPERATURE)
    columns = column(old_log_probs=old), column(advantages=advantages), graded
    student = StudentSettings(chosen, ForwardKl(top_k=k, **bounds))
    _, metrics = update_student(PLACE, actor, student, samples(), sequences(), *columns)
    assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["actor/forward_kl"] == pytest.approx(forward, rel=1e-4) and forward > 0.01
    same(actor.training.gradients, gradients)
