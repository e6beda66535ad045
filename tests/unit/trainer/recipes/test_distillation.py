"""On-policy distillation, a recipe of examples/, against float64."""

from pathlib import Path

import pytest
import torch

from tests.unit.trainer.operators.batches import (
    MASKS,
    PLACE,
    column,
    outputs_of,
    role,
    samples,
    sequences,
)
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.rewards.user_code import load_function

FILE = Path(__file__).parents[4] / "examples/distillation.py"


def exact(model, i):
    """Log-probs of the response tokens of sample i in float64."""
    engine, tokens = model.training, sequences()["tokens"][i]
    engine.weights = {name: weight.double() for name, weight in engine.weights.items()}
    found = outputs_of(engine, tokens)
    start = samples().samples[i].prompt_length
    return [float(found[t - 1].log_softmax(-1)[tokens[t]]) for t in range(start, len(tokens))]


def test_a_token_earns_how_much_likelier_it_is_to_the_teacher():
    actor, teacher = role(), role("teacher", seed=5)
    names = ("grade", "follow")
    grade, follow = (load_function(f"{FILE}:{name}") for name in names)
    old = column(old_log_probs=[torch.tensor(exact(role(), i)).float() for i in range(3)])
    graded, _ = grade(PLACE, teacher, 1.0, samples(), sequences())
    found, metrics = follow(PLACE, sequences(), old, graded)
    expected = [
        [(t - a) * m for t, a, m in zip(exact(teacher, i), exact(actor, i), mask, strict=True)]
        for i, mask in enumerate(MASKS)
    ]
    for row, numbers in zip(found["advantages"], expected, strict=True):
        assert row.tolist() == pytest.approx(numbers, abs=1e-6)
    counted = sum(map(sum, MASKS))
    kl = -sum(map(sum, expected)) / counted
    assert metrics == {"distillation/reverse_kl": pytest.approx(kl, abs=1e-6)}
    assert abs(kl) > 0.01


def test_the_policy_comes_nearer_to_its_teacher(tmp_path):
    run = small_run(
        tmp_path,
        recipe=f"{FILE}:distillation",
        roles={"actor": {}, "teacher": {"path": "models/teacher"}},
        steps=30,
        batch__size=6,
        rollout__num_samples=8,
        optimizer__lr=5e-2,
        held_out=None,
    )
    _, lines = loop(run)
    kl = [line["distillation/reverse_kl"] for line in lines]
    assert sum(kl[-5:]) < 0.5 * sum(kl[:5])
    assert "critic/score/mean" not in lines[0]
