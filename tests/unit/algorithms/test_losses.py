"""Every policy loss, its gradient and its metrics against a loop over tokens."""

import math
import statistics

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.batches import agree, deal, masks, numbers, on_parts, shapes
from verl_hpc.algorithms import losses
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.loss import PolicyLoss, StepTokens, Tokens

LOSSES = members(losses, PolicyLoss)


@st.composite
def micro_batches(draw):
    """(old, new, advantages, mask), (B, T) float64 each; some have tokens that are far more, or far
    less, likely than before."""
    shape = draw(shapes())
    old = draw(numbers(shape, -4.0, -0.1))
    reach = draw(st.sampled_from([2e-4, 0.01, 1.0, 1.0, 20.0]))
    # Probabilities are at most 1.
    new = (old + reach * draw(numbers(shape, -1.5, 1.5))).clamp(max=-1e-3)
    if draw(st.booleans()):
        old, new = new, old
    advantages = draw(numbers(shape, -2.0, 2.0)) * draw(st.sampled_from([0.0, 1.0, 1.0, 1.0]))
    return old, new, advantages, draw(masks(shape))


def number(x):
    return torch.tensor(float(x), dtype=torch.float64)


def within(x, bound):
    """A scalar; beyond the bound it has no gradient."""
    return x if abs(float(x)) <= bound else number(math.copysign(bound, float(x)))


# Oracles of losses of single tokens: a token's loss and what it adds to each metric, of the loss,
# its old and new log-prob, advantage, log-ratio (within 20), and whether it is selected.


def ppo_clip(loss, old, new, a, log_ratio, _):
    ratio = torch.exp(log_ratio)
    plain, clipped = -a * ratio, -a * (1 + loss.clip_high)
    if float(ratio) < 1 - loss.clip_low:
        clipped = -a * (1 - loss.clip_low)
    elif float(ratio) <= 1 + loss.clip_high:
        clipped = plain
    is_clipped = float(clipped) > float(plain)
    value = clipped if is_clipped else plain
    is_lower = a < 0 and loss.dual_clip is not None and float(value) > -a * loss.dual_clip
    value = number(-a * loss.dual_clip) if is_lower else value
    return value, {"pg_clipfrac": is_clipped, "pg_clipfrac_lower": is_lower, "ppo_kl": -log_ratio}


def cispo(loss, old, new, a, log_ratio, _):
    ratio = math.exp(float(log_ratio))
    weight = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
    return -weight * a * new, {"ppo_kl": -log_ratio, "pg_clipfrac": ratio != weight}


def sapo(loss, old, new, a, log_ratio, _):
    tau = loss.tau_positive if a > 0 else loss.tau_negative
    gate = 1 / (1 + torch.exp(-tau * (torch.exp(log_ratio) - 1))) * 4 / tau
    return -a * gate, {"ppo_kl": -log_ratio}


def gpg(loss, old, new, a, log_ratio, _):
    return -a * new, {}


def dro(loss, old, new, a, log_ratio, _):
    return -a * new + loss.beta / 2 * (new - old) ** 2, {"ppo_kl": old - new}


def divergence(kind, before, after):
    p, q = math.exp(before), math.exp(after)
    if kind == "tv":
        return 0.5 * (abs(p - q) + abs((1 - p) - (1 - q)))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def dppo(loss, old, new, a, log_ratio, _):
    threshold = loss.threshold or {"tv": 0.15, "kl": 0.05}[loss.divergence]
    apart = divergence(loss.divergence, old, float(new))
    assume(abs(apart - threshold) > 1e-9)
    outside = a * (float(new) - old) > 0 and apart > threshold
    ratio = math.exp(float(log_ratio))
    sums = {
        "pg_clipfrac": outside,
        "pg_clipfrac_lower": not outside and ratio > loss.max_ratio,
        "ppo_kl": -log_ratio,
    }
    return 0.0 * new if outside else -a * min(ratio, loss.max_ratio) * new, sums


def clip_cov(loss, old, new, a, log_ratio, is_selected):
    """No loss for selected tokens that the clip leaves as they are."""
    ratio = float(log_ratio.exp())
    near = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
    is_clipped = -a * near > -a * ratio
    value = number(-a * near) if is_clipped else -a * torch.exp(log_ratio)
    without = is_selected and not is_clipped
    sums = {"pg_clipfrac": without, "pg_clipfrac_ratio": is_clipped, "ppo_kl": -log_ratio}
    return 0.0 * value if without else value, sums


def kl_cov(loss, old, new, a, log_ratio, is_selected):
    """A penalty for selected tokens, whichever way they have gone."""
    value = -a * torch.exp(log_ratio) + loss.coefficient * is_selected * log_ratio.abs()
    return value, {"pg_covfrac": is_selected, "ppo_kl": log_ratio.abs()}


# Oracles of losses of sequences: losses of its tokens, and sums, of lists of the same.


def gspo(loss, old, new, advantages):
    """The gradient of a token's loss is that of the sequence's ratio, as if it were its own."""
    product = math.prod(math.exp(n.item() - o) for o, n in zip(old, new, strict=True))
    ratio = min(product ** (1 / max(len(new), 1)), math.exp(10.0))
    near = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
    values, clipfrac = [], 0
    for after, a in zip(new, advantages, strict=True):
        is_clipped = -a * near > -a * ratio
        moves = not is_clipped and ratio < math.exp(10.0)
        values.append(-a * (near if is_clipped else ratio) * (1 + moves * (after - float(after))))
        clipfrac += is_clipped
    kl = sum(o - float(n) for o, n in zip(old, new, strict=True))
    return values, {"pg_clipfrac": clipfrac, "ppo_kl": kl}


def gmpo(loss, old, new, advantages):
    total, clipped, lower = number(0), 0, 0
    for before, after, a in zip(old, new, advantages, strict=True):
        log_ratio = after - before
        near = min(max(float(log_ratio), -loss.clip_low), loss.clip_high)
        is_outside = near != float(log_ratio)
        clipped, lower = clipped + (a > 0 and is_outside), lower + (a < 0 and is_outside)
        if a == 0:
            continue
        total = total + (near if a * float(log_ratio) > a * near else log_ratio)
    count = max(len(new), 1)
    value = -sum(advantages) / count * torch.exp(total / count)
    kl = sum(o - float(n) for o, n in zip(old, new, strict=True))
    sums = {"pg_clipfrac": clipped, "pg_clipfrac_lower": lower, "ppo_kl": kl}
    return [value] * len(new), sums


WIDE = {"clip_low": 0.1, "clip_high": 0.5}
ORACLES = {
    ppo_clip: [{}, {"clip_high": 0.28}, {"dual_clip": None}, WIDE | {"dual_clip": 1.5}],
    cispo: [{}, {"clip_low": 0.2}, {"clip_high": 3.0}],
    sapo: [{}, {"tau_positive": 0.5, "tau_negative": 10.0}],
    gpg: [{}],
    dro: [{"beta": 0.05}, {"beta": 2.0}],
    dppo: [{}, {"divergence": "kl"}, {"threshold": 0.01, "max_ratio": 1.5}],
    clip_cov: [{}, WIDE],
    kl_cov: [{}, {"coefficient": 0.5}],
    gspo: [{}, {"clip_low": 0.2}],
    gmpo: [{}, {"clip_low": 0.1, "clip_high": 1.0}],
}
CASES = [(oracle, options) for oracle, given in ORACLES.items() for options in given]
OF_SEQUENCES = (gspo, gmpo)


def test_every_loss_has_an_oracle():
    assert LOSSES.keys() == {oracle.__name__ for oracle in ORACLES}


@pytest.mark.parametrize(("oracle", "options"), CASES)
@settings(max_examples=25)
@given(batch=micro_batches(), data=st.data())
def test_losses_gradients_and_metrics(oracle, options, batch, data):
    old, new, advantages, mask = batch
    loss, counts = LOSSES[oracle.__name__](**options), mask.bool()
    # A selection may have tokens that do not count.
    selected = data.draw(masks(tuple(mask.shape), torch.bool))
    told, sums = {}, {}

    def ours(new):
        values, metrics = loss(Tokens(old, new, advantages, mask, selected))
        assert not any(value.requires_grad for value in metrics.values())
        told.update({name: value.item() for name, value in metrics.items()})
        return torch.where(counts, values, 0)

    def theirs(leaves):
        values = [number(0) for _ in leaves]
        width = mask.shape[1]
        for i, row in enumerate(counts):
            places = [t for t, is_there in enumerate(row) if is_there]
            given = [
                (float(old[i, t]), leaves[i * width + t], float(advantages[i, t])) for t in places
            ]
            if oracle in OF_SEQUENCES:
                columns = [list(column) for column in zip(*given, strict=True)] or [[], [], []]
                of_row, metrics = oracle(loss, *columns)
                parts = [metrics]
            else:
                pairs = [
                    oracle(loss, *one, within(one[1] - one[0], 20.0), bool(selected[i, t]))
                    for t, one in zip(places, given, strict=True)
                ]
                of_row, parts = [value for value, _ in pairs], [metrics for _, metrics in pairs]
            for t, value in zip(places, of_row, strict=True):
                values[i * width + t] = value
            for name, value in (pair for metrics in parts for pair in metrics.items()):
                sums[name] = sums.get(name, 0.0) + float(value)
        return values

    agree(ours, theirs, new)
    assert sums.keys() <= told.keys()
    expected = {name: sums.get(name, 0.0) for name in told}
    assert told == pytest.approx(expected, rel=1e-9, abs=1e-9)


# What Clip-Cov and KL-Cov choose.


@st.composite
def steps(draw):
    """(old, advantages, mask, random)."""
    shape = draw(shapes())
    old, advantages = draw(numbers(shape, -4.0, -0.1)), draw(numbers(shape))
    return old, advantages, draw(masks(shape)), draw(numbers(shape, 0.0, 1.0))


def covariances(old, advantages, mask):
    """Covariances of the tokens that count, by place."""
    places = [(b, t) for b, t in mask.nonzero().tolist()]
    if not places:
        return {}
    means = [statistics.fmean(float(x[p]) for p in places) for x in (old, advantages)]
    return {p: (float(old[p]) - means[0]) * (float(advantages[p]) - means[1]) for p in places}


def chosen(loss, step, data):
    """Places that a loss selects, the same for any deal."""
    whole = loss.select(StepTokens(*step))
    deals = deal(data.draw, len(step[0]))
    parts = on_parts(lambda rows, r: loss.select(StepTokens(*(x[rows] for x in step), r)), deals)
    for rows, found in zip(deals, parts, strict=True):
        assert found.tolist() == whole[rows].tolist()
    return {(b, t) for b, t in whole.nonzero().tolist()}


@settings(max_examples=20)
@given(steps(), st.sampled_from([2e-4, 0.2, 0.5]), st.data())
def test_what_is_chosen_over_all_ranks(step, share, data):
    old, advantages, mask, random = step
    actual = covariances(old, advantages, mask)
    count = max(int(share * len(actual)), 1)
    band = [p for p, c in actual.items() if -0.5 < c < 2.0]
    expected = sorted(band, key=lambda p: float(random[p]), reverse=True)[:count]
    loss = LOSSES["clip_cov"](share=share, lower=-0.5, upper=2.0)
    assert chosen(loss, step, data) == set(expected)
    ordered = sorted(actual, key=actual.get, reverse=True)
    expected, rest = ordered[:count], ordered[count:]
    # The covariances of two tokens are equal but for rounding.
    assume(not rest or actual[expected[-1]] - actual[rest[0]] > 1e-9)
    assert chosen(LOSSES["kl_cov"](share=share), step, data) == set(expected)


# What the losses are for, by hand.


def of_token(loss, old, new, advantage):
    """The loss of one token, and its gradient by the log-prob."""
    old, advantage = (torch.tensor([[x]], dtype=torch.float64) for x in (old, advantage))
    new = torch.tensor([[new]], dtype=torch.float64, requires_grad=True)
    values, _ = loss(Tokens(old, new, advantage, torch.ones(1, 1)))
    values.sum().backward()
    return values.item(), new.grad.item()


def test_on_policy_losses_have_the_policy_gradient():
    for name, loss in LOSSES.items():
        if not loss.selects:
            made = loss(beta=1.0) if name == "dro" else loss()
            assert of_token(made, -1.0, -1.0, 0.7)[1] == pytest.approx(-0.7), name


def test_dppo_bounds_the_ratio_of_a_rare_token_and_is_finite_for_a_sure_one():
    """From 1e-5 to 1e-2 it moves little probability, and its ratio is 1000."""
    old, new = math.log(1e-5), math.log(1e-2)
    assert of_token(LOSSES["dppo"](max_ratio=3.0), old, new, 1.0)[1] == pytest.approx(-3.0)
    for kind in ("tv", "kl"):
        found = of_token(LOSSES["dppo"](divergence=kind), 0.0, -1e-9, 1.0)
        assert all(map(math.isfinite, found))


def test_losses_keep_their_type_and_metrics_leave_out_masked_tokens():
    new = torch.tensor([[1.0, 1.0, math.nan]], requires_grad=True)
    given = torch.zeros(1, 3), new, torch.ones(1, 3), torch.tensor([[1, 0, 0]])
    values, metrics = LOSSES["ppo_clip"]()(Tokens(*given))
    assert values.requires_grad and values.dtype == torch.float32
    found = {name: value.item() for name, value in metrics.items()}
    assert found == {"pg_clipfrac": 1, "pg_clipfrac_lower": 0, "ppo_kl": -1}
