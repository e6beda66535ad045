"""Forward passes: what belongs to which token of which response."""

import math
from dataclasses import replace
from itertools import chain

import pytest
import torch

from tests.unit.config.trees import parse
from tests.unit.step.operators.batches import (
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
from verl_hpc.errors import TrainingError
from verl_hpc.step.batch import ROLLOUT_LOG_PROBS
from verl_hpc.step.operators.infer import (
    OldLogProbsSettings,
    model_scores,
    old_log_probs,
    ref_log_probs,
    values,
)
from verl_hpc.step.role import InitialWeights

WITHOUT_CHECK = {"probe": False}


def slow_log_probs(engine, temperature=1.0):
    """Log-probs of all response tokens, each read off the distribution before it; entropies."""
    log_probs, entropies = [], []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        outputs = outputs_of(engine, prompt + response)
        rows = []
        for i, token in enumerate(response):
            p = torch.softmax(outputs[len(prompt) + i - 1] / temperature, -1)
            rows.append(math.log(p[token]))
            entropies.append(-sum(float(q) * math.log(q) for q in p))
        log_probs.append(rows)
    return log_probs, entropies


def settings(temperature=1.0, filtered=False, from_rollout=False, verify=WITHOUT_CHECK):
    rollout = {"num_samples": 4, "temperature": temperature, "verify": verify}
    algorithm = {"old_log_probs": "rollout"} if from_rollout else {}
    filters = {"top_p": 0.9} if filtered else {}
    return OldLogProbsSettings(parse(rollout=rollout | filters, algorithm=algorithm))


def close(rows, expected):
    for row, other in zip(rows, expected, strict=True):
        assert row.tolist() == pytest.approx(list(other), abs=1e-5)


def with_rollout(rows):
    found = sequences([[1] * len(r) for r in RESPONSES])
    found.values[ROLLOUT_LOG_PROBS] = rows
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_old_log_probs_are_those_of_the_sampled_tokens(temperature):
    actor, theirs = role(), per_token(1)
    given = with_rollout(theirs)
    columns, metrics = old_log_probs(PLACE, actor, settings(temperature), samples(), given)
    ours, entropies = slow_log_probs(actor.training, temperature)
    assert columns.positions == [0, 1, 2]
    close(columns["old_log_probs"], ours)
    apart = [abs(a - float(b)) for a, b in zip(chain(*ours), chain(*theirs), strict=True)]
    assert len(apart) == len(entropies) == 11
    means = {
        "rollout_log_probs_diff_mean": sum(apart) / 11,
        "rollout_log_probs_diff_max": max(apart),
    }
    for name, value in means.items():
        assert metrics[f"training/{name}"] == pytest.approx(value, rel=1e-5)
    assert metrics["actor/entropy"] == pytest.approx(sum(entropies) / 11, rel=1e-5)


def test_under_filters_engines_are_compared_at_temperature_1():
    actor = role()
    plain, _ = slow_log_probs(actor.training)
    given = with_rollout([torch.tensor(row) for row in plain])
    found, metrics = old_log_probs(PLACE, actor, settings(0.6, filtered=True), samples(), given)
    close(found["old_log_probs"], slow_log_probs(actor.training, 0.6)[0])
    assert metrics["training/rollout_log_probs_diff_max"] < 1e-5
    _, metrics = old_log_probs(PLACE, actor, settings(0.6), samples(), given)
    assert metrics["training/rollout_log_probs_diff_max"] > 0.1


def test_sums_of_squares_come_with_them_where_they_are_asked_for():
    actor = role()
    asked = replace(settings(0.6), sum_p_squared=True)
    given = with_rollout(per_token(1))
    columns, _ = old_log_probs(PLACE, actor, asked, samples(), given)
    expected = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        outputs = outputs_of(actor.training, prompt + response)[len(prompt) - 1 : -1]
        expected.append([float((x / 0.6).softmax(-1).square().sum()) for x in outputs])
    close(columns["sum_p_squared"], expected)
    plain, _ = old_log_probs(PLACE, actor, settings(0.6), samples(), given)
    assert set(plain.values) == {"old_log_probs"}


def test_the_rollouts_own_log_probs_may_be_taken():
    theirs = per_token(1)
    found, _ = old_log_probs(
        PLACE, role(), settings(from_rollout=True), samples(), with_rollout(theirs)
    )
    close(found["old_log_probs"], [row.tolist() for row in theirs])


def test_engines_that_are_apart_end_the_run():
    strict = {"probe_tolerance": 1e-4}
    given = with_rollout(per_token(1))
    with pytest.raises(TrainingError, match="differ by .* on average"):
        old_log_probs(PLACE, role(), settings(verify=strict), samples(), given)


def test_reference_log_probs_are_those_of_the_first_weights():
    actor = role()
    reference = role("reference")
    reference.training, reference.shared = None, InitialWeights(actor.training)
    expected, _ = slow_log_probs(actor.training, 0.8)
    for weight in actor.training.weights.values():
        weight.mul_(2)
    now = {name: weight.clone() for name, weight in actor.training.weights.items()}
    columns, metrics = ref_log_probs(PLACE, reference, 0.8, samples(), sequences())
    close(columns["ref_log_probs"], expected)
    assert metrics == {}
    for name, weight in actor.training.weights.items():
        assert torch.equal(weight, now[name]), "the actor has its own back"


def test_values_are_of_the_state_before_each_token():
    critic = role("critic", "value")
    found, _ = values(PLACE, critic, samples(), sequences())
    close(found["values"], [o[len(p) - 1 : -1] for p, o in zip(PROMPTS, said(critic), strict=True)])


def test_a_score_is_the_output_behind_the_last_token():
    reward = role("reward", "score")
    scores, metrics = model_scores(PLACE, reward, samples(), sequences())
    expected = [outputs[-1] for outputs in said(reward)]
    assert list(scores.values) == pytest.approx(expected, abs=1e-6)
    assert metrics["critic/score/mean"] == pytest.approx(sum(expected) / 3, abs=1e-6)


def said(model):
    """What a model with a head of one number says after each token of each sample."""
    texts = (prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True))
    return [[float(output) for output in outputs_of(model.training, text)] for text in texts]


def test_a_classifier_of_transformers_passes_over_padding():
    """An end of sequence that pads, too, is not the token that it scores."""
    reward, end = role("reward", "score"), RESPONSES[0][-1]
    reward.pad_token = end
    scores, _ = model_scores(PLACE, reward, samples(), sequences())
    expected = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        tokens = prompt + response
        while tokens[-1] == end:
            tokens.pop()
        expected.append(float(outputs_of(reward.training, tokens)[-1]))
    assert len(expected) == 3 and any(r[-1] != end for r in RESPONSES)
    assert list(scores.values) == pytest.approx(expected, abs=1e-6)


def test_scores_are_in_the_order_of_the_samples():
    reward, some = role("reward", "score"), sequences()
    turned = column(**{name: rows[::-1] for name, rows in some.values.items()})
    turned.positions = [2, 1, 0]
    scores, _ = model_scores(PLACE, reward, samples(), some)
    again, _ = model_scores(PLACE, reward, samples(), turned)
    assert scores.values == again.values


def test_tokens_that_the_model_did_not_write_are_not_compared():
    """The rollout engine has no log-prob of them."""
    actor = role()
    plain, entropies = slow_log_probs(actor.training)
    given = sequences()
    given.values[ROLLOUT_LOG_PROBS] = [
        torch.where(mask.bool(), torch.tensor(row), 0.0)
        for row, mask in zip(plain, given["mask"], strict=True)
    ]
    _, metrics = old_log_probs(PLACE, actor, settings(), samples(), given)
    assert metrics["training/rollout_log_probs_diff_max"] < 1e-5
    masks = torch.cat(given["mask"]).tolist()
    expected = sum(e for e, count in zip(entropies, masks, strict=True) if count) / sum(masks)
    assert metrics["actor/entropy"] == pytest.approx(expected, rel=1e-5)
