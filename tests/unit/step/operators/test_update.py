"""Optimizer steps: their gradients against losses that are written down token by token."""

import math
from dataclasses import replace

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
    counted,
    per_token,
    role,
    samples,
    sequences,
)
from verl_hpc.config.algorithm import AlgorithmConfig
from verl_hpc.config.model import OptimizerConfig
from verl_hpc.errors import FlowError, TrainingError
from verl_hpc.step.batch import MASK
from verl_hpc.step.operators.infer import OldLogProbsSettings, old_log_probs
from verl_hpc.step.operators.optimise import OptimiseSettings
from verl_hpc.step.operators.update import PolicySettings, update_actor, update_critic, update_sft

SMALL = OptimizerConfig(lr=1e-3, clip_grad=0.0)
MODES = (
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)  # fmt: skip
SCALE = 16.0


def steps(mode="token-mean", epochs=1, temperature=1.0, config=None):
    config = config or parse()
    algorithm = config.algorithm.model_copy(update={"loss_scale": SCALE})
    config = config.model_copy(update={"algorithm": algorithm})
    return OptimiseSettings(config, epochs, mode, temperature)


def of_values(clip):
    config = parse()
    critic = config.critic.model_copy(update={"value_clip": clip})
    return steps(config=config.model_copy(update={"critic": critic}))


def policy(
    algorithm, mode="token-mean", epochs=1, temperature=1.0, from_rollout=False, tolerance=1e9
):
    verify = {"probe_tolerance": tolerance}
    config = parse(rollout={"num_samples": 4, "temperature": temperature, "verify": verify})
    source = {"old_log_probs": "rollout" if from_rollout else "auto"}
    config = config.model_copy(update={"algorithm": algorithm.model_copy(update=source)})
    return PolicySettings(algorithm.loss, steps(mode, epochs, temperature, config))


def updated(actor, settings, advantages, old, *more, **rest):
    """Metrics of an update of the actor on the batch."""
    given = column(advantages=advantages), column(old_log_probs=old)
    return update_actor(PLACE, actor, settings, samples(), sequences(), *given, *more, **rest)[1]


def weight_of(mode, mask, masks=MASKS):
    """What the loss of a token of a sequence is multiplied with."""
    sequences = sum(any(m) for m in masks)
    return {
        "token-mean": 1 / sum(map(sum, masks)),
        "token-sum": 1.0,
        "seq-mean-token-sum": 1 / sequences,
        "seq-mean-token-mean": 1 / sequences / max(sum(mask), 1),
        "seq-mean-token-sum-norm": 1 / sequences / SCALE,
    }[mode]


def slow(engine, term, mode="token-mean", temperature=1.0, which=(0, 1, 2), masks=MASKS):
    """A loss and its gradients: `term(sample, token, output)` over the tokens that count."""
    weights = {name: w.clone().requires_grad_() for name, w in engine.weights.items()}
    embedding, head = weights.values()
    total = torch.zeros(())
    for i in which:
        tokens = PROMPTS[i] + RESPONSES[i]
        for t, counts in enumerate(masks[i]):
            if counts:
                end = len(PROMPTS[i]) + t
                seen = embedding[tokens[:end]]
                output = head @ torch.tanh(seen.mean(0) + seen[-1])
                if len(output) > 1:
                    output = (output / temperature).log_softmax(-1)
                total = total + weight_of(mode, masks[i], [masks[j] for j in which]) * term(
                    i, t, output
                )
    total.backward()
    return float(total.detach()), {name: w.grad for name, w in weights.items()}


def log_prob(i, t, output):
    return output[RESPONSES[i][t]]


def same(gradients, expected):
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("masks", [MASKS, [MASKS[0], [0, 0], MASKS[2]]])
def test_sft_is_the_cross_entropy_of_the_tokens_that_count(mode, masks):
    """A sequence without a token that counts adds nothing."""
    actor = role(optimizer=SMALL)
    expected, gradients = slow(actor.training, lambda *a: -log_prob(*a), mode, masks=masks)
    _, metrics = update_sft(PLACE, actor, steps(mode), samples(), sequences(masks))
    assert metrics["sft/loss"] == pytest.approx(expected, rel=1e-5)
    same(actor.training.gradients, gradients)
    assert {"actor/lr", "actor/grad_norm"} <= set(metrics)
    assert sum(map(sum, MASKS)) == NUM_TOKENS


def ppo_term(algorithm, old, advantages, reference=None, sampled=None):
    loss_of = algorithm.loss

    def term(i, t, output):
        log_prob = output[RESPONSES[i][t]]
        ratio = torch.exp(log_prob - float(old[i][t]))
        advantage = float(advantages[i][t])
        clipped = ratio.clamp(1 - loss_of.clip_low, 1 + loss_of.clip_high)
        loss = -min(ratio * advantage, clipped * advantage)
        if advantage < 0:
            loss = min(loss, torch.tensor(-advantage * loss_of.dual_clip))
        if sampled is not None:
            weight = math.exp(float(old[i][t]) - float(sampled[i][t]))
            loss = loss * min(weight, algorithm.correction.upper)
        if reference is not None:
            back = float(reference[i][t]) - log_prob
            loss = loss + algorithm.kl.coefficient * (back.exp() - back - 1).clamp(-10, 10)
        if algorithm.entropy_coefficient:
            loss = loss + algorithm.entropy_coefficient * (output.exp() * output).sum()
        return loss

    return term


POLICY_SETTINGS = [
    {},
    {"loss": {"clip_high": 0.5, "dual_clip": 1.5}},
    {"entropy_coefficient": 0.1},
    {"kl": {"placement": "loss", "coefficient": 0.3}},
    {"correction": {"upper": 1.2}},
    {"correction": {"upper": 1.5}, "entropy_coefficient": 0.1, "kl": {"placement": "loss"}},
]


@pytest.mark.parametrize("changes", POLICY_SETTINGS)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_policys_loss_is_ppos(changes, mode):
    algorithm = AlgorithmConfig.model_validate(changes)
    actor = role(optimizer=SMALL)
    # Near the policy's own, so that some ratios are clipped and some are not.
    own = own_log_probs(actor, 0.7)
    old = [row + noise for row, noise in zip(own, per_token(5, 0.5), strict=True)]
    advantages, reference = per_token(6), per_token(8)
    in_loss = reference if algorithm.kl.placement == "loss" else None
    sampled = [row + noise for row, noise in zip(old, per_token(10), strict=True)]
    used = sampled if algorithm.correction else None
    term = ppo_term(algorithm, old, advantages, in_loss, used)
    expected, gradients = slow(actor.training, term, mode, temperature=0.7)
    trained = None
    if used:
        ratios = [(o - s).exp() for o, s in zip(old, sampled, strict=True)]
        weights = [row.clamp(max=algorithm.correction.upper) for row in ratios]
        trained = column(mask=sequences()[MASK], weights=weights)
    reference = None if in_loss is None else column(ref_log_probs=reference)
    settings = policy(algorithm, mode, temperature=0.7)
    metrics = updated(actor, settings, advantages, old, reference, trained)
    assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-4)
    same(actor.training.gradients, gradients)
    drift = sum(counted(o - x for o, x in zip(old, own, strict=True)))
    assert metrics["actor/ppo_kl"] == pytest.approx(drift / NUM_TOKENS, abs=1e-5)
    assert 0 < metrics["actor/pg_clipfrac"] < 1


@pytest.mark.parametrize("mode", MODES)
def test_penalties_add_up_in_their_own_way(mode):
    penalties = {"kl": {"placement": "loss", "coefficient": 0.3}, "entropy_coefficient": 0.1}
    algorithm = AlgorithmConfig.model_validate(penalties | {"penalty_aggregation": mode})
    old, advantages, reference = per_token(5, 0.5), per_token(6), per_token(8)
    actor = role(optimizer=SMALL)
    plain = ppo_term(AlgorithmConfig(), old, advantages)
    whole = ppo_term(algorithm, old, advantages, reference)
    parts = [
        slow(actor.training, plain, "seq-mean-token-mean"),
        slow(actor.training, lambda *at: whole(*at) - plain(*at), mode),
    ]
    settings = policy(algorithm, "seq-mean-token-mean")
    metrics = updated(actor, settings, advantages, old, column(ref_log_probs=reference))
    assert metrics["actor/loss"] == pytest.approx(parts[0][0] + parts[1][0], rel=1e-4)
    same(actor.training.gradients, {n: g + parts[1][1][n] for n, g in parts[0][1].items()})


LEFT = [[1, 0, 0, 0, 1], [0, 0], [0, 1, 0, 0]]
"""The part of MASKS that is trained on."""


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_out_leaves_the_normalisers(mode):
    """Losses are as if a sequence, and tokens of others, that are left out had never been."""
    algorithm, actor = AlgorithmConfig(), role(optimizer=SMALL)
    old, advantages = per_token(5, 0.5), per_token(6)
    term = ppo_term(algorithm, old, advantages)
    expected, gradients = slow(actor.training, term, mode, masks=LEFT)
    trained = column(mask=[torch.tensor(mask, dtype=torch.uint8) for mask in LEFT])
    metrics = updated(actor, policy(algorithm, mode), advantages, old, trained=trained)
    assert metrics["actor/loss"] == pytest.approx(expected, rel=1e-4)
    same(actor.training.gradients, gradients)


def with_rollout(rows):
    given = sequences()
    given.values["rollout_log_probs"] = rows
    return given


def own_log_probs(actor, temperature):
    outputs = actor.training.infer(sequences()["tokens"], temperature)
    return [o.log_probs[len(p) - 1 :] for o, p in zip(outputs, PROMPTS, strict=True)]


@pytest.mark.parametrize("from_rollout", [False, True])
def test_one_step_needs_no_log_probs_from_before_it(from_rollout):
    """Its own, or the engine's, give the same gradient and metrics as those of a pass before it."""
    algorithm, given = AlgorithmConfig(), column(advantages=per_token(6))
    actors = [role(optimizer=SMALL), role(optimizer=SMALL)]
    near = zip(own_log_probs(actors[0], 0.7), per_token(3, 0.1), strict=True)
    sampled = [row + noise for row, noise in near]
    settings = policy(algorithm, temperature=0.7, from_rollout=from_rollout)
    _, measured = update_actor(PLACE, actors[0], settings, samples(), with_rollout(sampled), given)
    old = OldLogProbsSettings(settings.steps.config)
    before, metrics = old_log_probs(PLACE, actors[1], old, samples(), with_rollout(sampled))
    _, expected = update_actor(
        PLACE, actors[1], settings, samples(), with_rollout(sampled), given, before
    )
    assert measured == expected | metrics
    assert metrics["training/rollout_log_probs_diff_mean"] > 0.01
    assert (measured["actor/ppo_kl"] == 0) is not from_rollout
    for name, gradient in actors[0].training.gradients.items():
        assert torch.equal(gradient, actors[1].training.gradients[name])


def test_a_mismatch_that_the_update_finds_leaves_the_weights():
    actor = role(optimizer=SMALL)
    before = {name: weight.clone() for name, weight in actor.training.weights.items()}
    settings = policy(AlgorithmConfig(), tolerance=1e-3)
    with pytest.raises(TrainingError, match="Nothing was trained on these responses"):
        given = column(advantages=per_token(6))
        update_actor(PLACE, actor, settings, samples(), with_rollout(per_token(1)), given)
    assert all(torch.equal(w, before[name]) for name, w in actor.training.weights.items())
    assert actor.training.counters() == {"num_steps": 0}


def test_several_steps_need_log_probs_from_before_them():
    actor, given = role(optimizer=SMALL), column(advantages=per_token(6))
    settings = policy(AlgorithmConfig(), epochs=2)
    with pytest.raises(FlowError, match=r"2 optimizer steps.*put the operator old_log_probs"):
        update_actor(PLACE, actor, settings, samples(), with_rollout(per_token(1)), given)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_critic_regresses_on_returns(clip):
    critic = role("critic", "value", SMALL)
    old, returns = per_token(2, 0.1), per_token(4)

    def term(i, t, output):
        target, before = float(returns[i][t]), float(old[i][t])
        plain = (output[0] - target) ** 2
        if clip is None:
            return plain / 2
        clipped = (output[0].clamp(before - clip, before + clip) - target) ** 2
        return torch.maximum(plain, clipped) / 2

    expected, gradients = slow(critic.training, term)
    given = samples(), sequences(), column(values=old), column(returns=returns)
    _, metrics = update_critic(PLACE, critic, of_values(clip), *given)
    assert metrics["critic/vf_loss"] == pytest.approx(expected, rel=1e-5)
    same(critic.training.gradients, gradients)
    earned, guessed = torch.tensor(counted(returns)), torch.tensor(counted(old))
    explained = 1 - (earned - guessed).var() / earned.var()
    assert metrics["critic/vf_explained_var"] == pytest.approx(float(explained), abs=1e-5)


@pytest.mark.parametrize("later", [None, [(1, 2), (0,)]])
def test_every_mini_batch_is_a_step_in_every_epoch(later):
    """A later epoch has the mini-batches of the first, or is dealt anew."""
    actor, first = role(optimizer=SMALL), [(0, 2), (1,)]
    dealt = replace(samples(first), later_epochs=[later]) if later else samples(first)
    members = [*first, *(later or first)]
    update, seen = actor.training.update, []

    def watch(rows, loss, *more):
        which = members[len(seen)]
        expected, _ = slow(actor.training, lambda *a: -log_prob(*a), which=which)
        metrics = update(rows, loss, *more)
        seen.append(([row.tolist() for row in rows], metrics["loss"]))
        assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
        return metrics

    actor.training.update = watch
    _, metrics = update_sft(PLACE, actor, steps(epochs=2), dealt, sequences())
    whole = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    assert [rows for rows, _ in seen] == [[whole[i] for i in which] for which in members]
    assert actor.training.counters() == {"num_steps": 4}
    assert metrics["sft/loss"] == pytest.approx(sum(loss for _, loss in seen) / 4, rel=1e-6)


def test_a_loss_that_is_not_finite_leaves_the_weights():
    critic = role("critic", "value", SMALL)
    before = {name: weight.clone() for name, weight in critic.training.weights.items()}
    returns = [torch.full((len(r),), torch.nan) for r in RESPONSES]
    with pytest.raises(TrainingError):
        update_critic(
            PLACE, critic, of_values(None), samples(), sequences(),
            column(values=per_token(1)), column(returns=returns),
        )  # fmt: skip
    for name, weight in critic.training.weights.items():
        assert torch.equal(weight, before[name])
        assert not weight.requires_grad
