"""Parts of the Megatron engine that one process can run, and Megatron-core's own rank order.

One file, since importing the engine imports Megatron-core, which takes seconds.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from verl_hpc.engines.megatron import shim
from verl_hpc.engines.megatron.expert_choice import best_experts
from verl_hpc.engines.megatron.optimizer import clip_grads, l2_norm, local_multi_tensor_l2_norm
from verl_hpc.engines.megatron.router_replay import expert_ids
from verl_hpc.engines.shared import log_probs as module
from verl_hpc.engines.shared.log_probs import likeliest_tokens, log_probs_and_entropy, sum_p_squared
from verl_hpc.engines.shared.packing import pack
from verl_hpc.engines.shared.padded import PaddedAttention, PaddedView, similar_lengths
from verl_hpc.engines.shared.shared_prefixes import num_shared, share_units, within
from verl_hpc.errors import ClusterError
from verl_hpc.layout.grid import RankGrid
from verl_hpc.layout.megatron import TrainLayout


@pytest.mark.parametrize("version", ["0.15.3", "0.17.0"])
def test_other_versions_of_megatron_core_are_refused_by_name(monkeypatch, version):
    import megatron.core

    shim._check()
    monkeypatch.setattr(megatron.core, "__version__", version)
    with pytest.raises(ClusterError, match=f"megatron-core {version}: .* checked with 0.16.1"):
        shim._check()


# What a GPU is asked for


class Reads(TorchDispatchMode):
    """Counts numbers that are read from a device, each of which a GPU is waited for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_the_norm_of_all_gradients_is_read_once(monkeypatch):
    tensors = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in range(1, 50)]
    monkeypatch.setattr(clip_grads, "l2_norm_impl", l2_norm)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    with Reads() as reads:
        norm = clip_grads.get_grad_norm_fp32(tensors)
    assert reads.count == 1
    assert norm == pytest.approx(float(torch.cat(tensors).double().norm()), rel=1e-6)
    own, _ = local_multi_tensor_l2_norm(0, None, [tensors], False)
    assert torch.equal(own, l2_norm(0, own, [tensors], False)[0])


def test_rectangles_of_a_row_ask_for_nothing():
    """A device without contents cannot say how many elements a repetition has."""
    row = pack([torch.arange(n) for n in (5, 2, 7)], 4)
    elsewhere = replace(row, tokens=row.tokens.to("meta"), positions=row.positions.to("meta"))
    for members in (None, [0, 2]):
        assert PaddedView(elsewhere, members).slots.shape == PaddedView(row, members).slots.shape


# Log-probabilities and entropy


def exact(logits, targets, temperature):
    """Log-probs and entropy by torch in float64, differentiable."""
    log_p = (logits.double() / temperature).log_softmax(-1)
    chosen = log_p[torch.arange(len(targets)), targets]
    return chosen, -(log_p.exp() * log_p).sum(-1)


@st.composite
def logits(draw, dtype=torch.float32):
    tokens, vocab = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.1, 1.0, 10.0]))
    values = spread * torch.randn(tokens, vocab, generator=generator, dtype=torch.float64)
    return values.to(dtype), torch.randint(vocab, (tokens,), generator=generator)


temperatures = st.sampled_from([0.3, 1.0, 1.7])


def padded_and_exact(values, padding):
    """Logits in float32 with columns of padding, and in float64 without, both differentiable."""
    padded = torch.nn.functional.pad(values, (0, padding), value=50.0).requires_grad_()
    return padded, values.double().requires_grad_()


def same_values_and_gradients(padded, truth, found, expected, atol=5e-5, rows=slice(None)):
    """Outputs are the same, and so are gradients of weighted sums of them, in these columns of the
    exact logits; padding has none."""
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=atol)
    for outputs in (found, expected):
        joined = torch.cat([output.flatten() for output in outputs])
        (joined * torch.linspace(-1, 2, len(joined))).sum().backward()
    exact_gradient = truth.grad[:, rows]
    gradient = padded.grad[:, : exact_gradient.shape[1]].double()
    torch.testing.assert_close(gradient, exact_gradient, rtol=1e-4, atol=1e-4)
    assert (padded.grad[:, exact_gradient.shape[1] :] == 0).all()


@given(logits(), temperatures, st.integers(0, 3))
def test_values_and_gradients_with_padded_rows(case, temperature, padding):
    values, targets = case
    padded, truth = padded_and_exact(values, padding)
    sizes = {"first_row": 0, "num_rows": values.shape[1], "temperature": temperature}
    found = log_probs_and_entropy(padded, targets, **sizes)
    same_values_and_gradients(padded, truth, found, exact(truth, targets, temperature))


@pytest.mark.parametrize("which", [0, 1])
def test_either_output_may_go_unused(which):
    values = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 6, 3])
    mine, truth = values.clone().requires_grad_(), values.double().requires_grad_()
    log_probs_and_entropy(mine, targets, first_row=0, num_rows=7)[which].sum().backward()
    exact(truth, targets, 1.0)[which].sum().backward()
    torch.testing.assert_close(mine.grad.double(), truth.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_computed_in_float32(dtype):
    values = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.tensor([0, 49, 7, 7])
    mine, truth = values.clone().requires_grad_(), values.double().requires_grad_()
    found = log_probs_and_entropy(mine, targets, first_row=0, num_rows=50)
    for x, theirs in zip(found, exact(truth, targets, 1.0), strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), theirs, rtol=1e-5, atol=1e-5)
    found[0].sum().backward()
    assert mine.grad.dtype == dtype


def test_large_logits_do_not_overflow():
    values = torch.tensor([[1e4, 1e4 - 1.0, -1e4]])
    chosen, entropy = log_probs_and_entropy(values, torch.tensor([1]), first_row=0, num_rows=3)
    p = 1 / (1 + math.e)
    assert chosen.item() == pytest.approx(math.log(p), rel=1e-5)
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-5)


def test_the_logits_are_left_as_they_were():
    values = torch.randn(3, 7)
    before = values.clone()
    log_probs_and_entropy(values, torch.tensor([0, 1, 2]), first_row=0, num_rows=5)
    assert torch.equal(values, before)


def beside(monkeypatch, others, targets, first_rows, temperature):
    """Answer the reductions for the rest of the vocabulary, which other ranks would hold.

    `others` are the other shards' valid logits, `first_rows` where each starts.
    """
    shards = [o.double() / temperature for o in others]
    highest = []

    def all_reduce(tensor, op, group):
        if op == module.dist.ReduceOp.MAX:
            for shard in shards:
                torch.maximum(tensor, shard.amax(-1).float(), out=tensor)
            highest.append(tensor.clone())
            return
        for shard, first in zip(shards, first_rows, strict=True):
            x = shard - highest[-1][:, None].double()
            local = targets - first
            mine = (local >= 0) & (local < shard.shape[1])
            picked = x.gather(-1, torch.where(mine, local, 0)[:, None])[:, 0] * mine
            tensor += torch.stack([x.exp().sum(-1), (x.exp() * x).sum(-1), picked], -1).float()

    monkeypatch.setattr(module, "_all_reduce", all_reduce)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("start, stop", [(0, 4), (4, 9), (9, 11), (11, 11)])
def test_a_shard_of_the_vocabulary(monkeypatch, start, stop, temperature):
    """Each shard sees the values of all, and the gradient of its own rows; one is padding only."""
    values = 3 * torch.randn(6, 11, generator=torch.Generator().manual_seed(5))
    targets = torch.tensor([0, 3, 4, 8, 9, 10])
    rest = [(values[:, :start], 0), (values[:, stop:], stop)]
    rest = [(shard, first) for shard, first in rest if shard.shape[1]]
    beside(monkeypatch, [s for s, _ in rest], targets, [f for _, f in rest], temperature)
    shard, _ = padded_and_exact(values[:, start:stop], 3)
    truth = values.double().requires_grad_()
    sizes = {"first_row": start, "num_rows": stop - start, "temperature": temperature}
    outputs = log_probs_and_entropy(shard, targets, **sizes)
    expected = exact(truth, targets, temperature)
    same_values_and_gradients(shard, truth, outputs, expected, 1e-5, slice(start, stop))


@given(logits(), temperatures, st.integers(0, 3), st.integers(1, 4))
def test_several_targets_of_each_token(case, temperature, padding, number):
    """Some of them more than once."""
    values, _ = case
    sizes = {"first_row": 0, "num_rows": values.shape[1], "temperature": temperature}
    generator = torch.Generator().manual_seed(number)
    targets = torch.randint(values.shape[1], (len(values), number), generator=generator)
    padded, truth = padded_and_exact(values, padding)
    found, _ = log_probs_and_entropy(padded, targets, **sizes)
    expected = (truth / temperature).log_softmax(-1).gather(-1, targets)
    same_values_and_gradients(padded, truth, [found], [expected])


@given(logits(), temperatures, st.integers(0, 3))
def test_squares_of_probabilities(case, temperature, padding):
    values, _ = case
    num_rows = values.shape[1]
    padded = torch.nn.functional.pad(values, (0, padding), value=50.0).requires_grad_()
    found = sum_p_squared(padded, num_rows=num_rows, temperature=temperature)
    expected = (values.double() / temperature).softmax(-1).square().sum(-1)
    assert not found.requires_grad
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


def test_chunks_change_nothing(monkeypatch):
    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(4, (7, 2), generator=torch.Generator().manual_seed(1))

    def everything():
        logits = values.clone().requires_grad_()
        outputs = log_probs_and_entropy(logits, targets, first_row=0, num_rows=4)
        sum(f.square().sum() for f in outputs).backward()
        top = likeliest_tokens(values, 2, first_row=0, num_rows=4)
        return [*outputs, logits.grad, sum_p_squared(values, num_rows=4), top]

    whole = everything()
    monkeypatch.setitem(module._CHUNK, "cpu", 10)
    assert len([*module._chunks(values)]) == 4
    for part, expected in zip(everything(), whole, strict=True):
        assert torch.equal(part, expected)


@pytest.mark.parametrize("count", [1, 3, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_tokens_of_shards(monkeypatch, count, dtype):
    """Shards have 3, 6, 2 and no tokens besides padding, which is never among the likeliest."""
    order = torch.stack([torch.randperm(11, generator=torch.Generator()) for _ in range(5)])
    values = order.to(dtype)
    parts = []
    bounds = [(0, 3), (3, 9), (9, 11), (11, 11)]
    monkeypatch.setattr(module, "_gather", lambda tensor, group: parts.append(tensor) or tensor)

    def of_shard(start, stop):
        shard = torch.nn.functional.pad(values[:, start:stop], (0, 2), value=99.0)
        return likeliest_tokens(shard, count, first_row=start, num_rows=stop - start)

    for start, stop in bounds:
        of_shard(start, stop)
    whole = {True: torch.cat(parts[::2], -1), False: torch.cat(parts[1::2], -1)}
    monkeypatch.setattr(module, "_gather", lambda t, group: whole[t.is_floating_point()])
    for start, stop in bounds:
        assert torch.equal(of_shard(start, stop), order.argsort(-1, descending=True)[:, :count])


# Packing


sequences = st.lists(
    st.lists(st.integers(1, 99), min_size=1, max_size=7).map(torch.tensor), min_size=1, max_size=6
)


@given(sequences, st.integers(1, 8))
def test_a_packed_row_token_by_token(parts, multiple):
    row = pack(parts, multiple)
    tokens, positions, targets = [], [], []
    for part in parts:
        tokens += part.tolist()
        positions += range(len(part))
        targets += [*part[1:].tolist(), 0]
    padding = -len(tokens) % multiple
    assert row.tokens.tolist() == [tokens + [0] * padding]
    assert row.positions.tolist() == [positions + list(range(padding))]
    assert row.targets.tolist() == targets + [0] * padding
    assert row.tokens.shape[1] % multiple == 0
    lengths = [len(p) for p in parts] + [padding] * (padding > 0)
    assert (list(row.lengths), row.num_sequences) == (lengths, len(parts))
    assert row.cumulative_lengths.tolist() == [0, *np.cumsum(lengths)]
    assert row.cumulative_lengths.dtype == torch.int32


@given(sequences, st.integers(1, 8))
def test_splitting_gives_the_sequences_back_and_outputs_are_joined_as_they_were_split(
    parts, multiple
):
    row = pack(parts, multiple)
    torch.testing.assert_close(row.split(row.tokens[0]), parts, rtol=0, atol=0)
    wide = row.split(torch.stack([row.tokens[0], -row.tokens[0]], dim=1))
    assert [w.shape for w in wide] == [(len(p), 2) for p in parts]
    given = [torch.stack([part, -part], dim=1)[1:] for part in parts]
    whole = row.join(given)
    assert whole.shape == (row.tokens.shape[1], 2) and whole.dtype == torch.int64
    for mine, part in zip(row.split(whole), given, strict=True):
        assert torch.equal(mine[:-1], part) and not mine[-1].any()


@given(sequences, st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
def test_padding_and_back(parts, multiple, heads, size):
    row = pack(parts, multiple)
    view = PaddedView(row)
    total = row.tokens.shape[1]
    packed = torch.arange(1.0, total * heads * size + 1).view(total, heads, size).requires_grad_()
    padded = view.pad(packed)
    longest = max(row.lengths)
    assert padded.shape == (len(row.lengths), heads, longest, size)
    start = 0
    for index, length in enumerate(row.lengths):
        expected = packed[start : start + length].transpose(0, 1)
        assert torch.equal(padded[index, :, :length], expected)
        assert (padded[index, :, length:] == 0).all()
        start += length
    back = view.unpad(padded)
    assert torch.equal(back, packed)
    back.sum().backward()
    assert (packed.grad == 1).all(), "each token gets its own gradient, once"


many_lengths = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=12)


@given(many_lengths)
def test_rectangles_are_at_most_half_padding(lengths):
    groups = similar_lengths(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert group == sorted(group)
        chosen = [lengths[i] for i in group]
        assert len(chosen) * max(chosen) <= 2 * sum(chosen)


# Tokens that sequences share


@st.composite
def alike(draw):
    """Sequences of which many begin like the one before."""
    found = [draw(st.lists(st.integers(1, 3), min_size=1, max_size=9))]
    for _ in range(draw(st.integers(0, 5))):
        kept = draw(st.integers(0, len(found[-1])))
        rest = draw(st.lists(st.integers(1, 3), min_size=not kept, max_size=6))
        found.append(found[-1][:kept] + rest)
    return [torch.tensor(tokens) for tokens in found]


@given(alike())
def test_what_neighbours_share(parts):
    assert num_shared(parts)[0] == 0
    for before, part, count in zip(parts, parts[1:], num_shared(parts)[1:], strict=False):
        both = [a == b for a, b in zip(before.tolist(), part.tolist(), strict=False)]
        equal = both.index(False) if False in both else len(both)
        most = max(equal - 1, 0)
        assert count == (most if most * 8 >= len(part) else 0)


class _Waits(TorchDispatchMode):
    """Counts operations whose result the host must know: on a GPU it waits for them."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waits = (torch.ops.aten.nonzero.default, torch.ops.aten._local_scalar_dense.default)
        self.count += function in waits
        return function(*args, **(kwargs or {}))


def test_neighbours_are_compared_without_waiting_for_each():
    prompt = torch.arange(20)
    parts = [torch.cat([prompt, torch.tensor([n, 7])]) for n in range(40, 46)]
    with _Waits() as waits:
        assert num_shared(parts) == [0] + [19] * 5
    assert waits.count == 0


@given(alike(), st.integers(1, 8))
def test_a_row_with_shared_tokens_is_the_sequences(parts, multiple):
    shared = num_shared(parts)
    row, plain = pack(parts, multiple, shared), pack(parts, multiple)
    num_own = sum(map(len, parts)) - sum(shared)
    assert row.tokens.shape[1] == num_own + -num_own % multiple
    for name in ("tokens", "positions", "targets"):
        for mine, theirs in zip(
            row.split(getattr(row, name).view(-1)),
            plain.split(getattr(plain, name).view(-1)),
            strict=True,
        ):
            assert torch.equal(mine, theirs), name


@given(alike(), st.integers(1, 8))
def test_numbers_of_shared_tokens_are_joined_once(parts, multiple):
    """Where they are equal, which they are of candidates that a loss may ask for."""
    row = pack(parts, multiple, num_shared(parts))
    given = [torch.stack([part, -part], dim=1)[1:] for part in parts]
    for mine, part in zip(row.split(row.join(given)), given, strict=True):
        assert torch.equal(mine[:-1], part)


@given(alike(), st.integers(1, 8))
def test_shared_tokens_through_rectangles_and_back(parts, multiple):
    row = pack(parts, multiple, num_shared(parts))
    total = row.tokens.shape[1]
    packed = torch.arange(2.0 * total).view(total, 1, 2).requires_grad_()
    views = PaddedAttention(row)
    padded = [view.pad(packed) for view in views.views]
    back = views.join([v.unpad(p) for v, p in zip(views.views, padded, strict=True)])
    assert torch.equal(back, packed)
    sum(p.sum() for p in padded).backward()
    places = row.places if row.places is not None else torch.arange(total)
    uses = places.bincount(minlength=total).float()
    assert torch.equal(packed.grad, uses[:, None, None].expand(-1, 1, 2))


@given(alike(), st.integers(1, 12), st.sampled_from([1, 2]))
def test_runs_of_neighbours_that_share(parts, most, together):
    parts = parts[: len(parts) // together * together]
    lengths, shared = [len(p) for p in parts], num_shared(parts)
    units, sizes = share_units(lengths, shared, most, together)
    assert [i for unit in units for i in unit] == list(range(len(parts)))
    for unit, size in zip(units, sizes, strict=True):
        assert len(unit) % together == 0
        assert size == pack(parts[unit.start : unit.stop], 1, within(unit, shared)).tokens.shape[1]
        assert size <= most or len(unit) == together
        assert all(shared[first] for first in unit[together::together])


def test_the_examples_of_shared_prefixes():
    rows = [torch.tensor(row) for row in ([5, 6, 7, 1], [5, 6, 7, 2], [8, 9])]
    assert num_shared(rows) == [0, 2, 0]
    assert share_units([4, 4, 4, 2], [0, 2, 2, 0], 100) == ([range(3), range(3, 4)], [8, 2])
    assert within([0, 1, 3, 4], [0, 2, 2, 3, 4]) == [0, 2, 0, 4]


# Ranks


GRIDS = [(1, 1, 1), (2, 1, 1), (2, 2, 2), (4, 2, 1), (2, 3, 2), (1, 2, 4)]


@pytest.mark.parametrize("tp, dp, pp", GRIDS)
def test_our_dense_grid_is_megatrons(tp, dp, pp):
    from megatron.core.parallel_state import RankGenerator

    theirs = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    grid = TrainLayout(tp=tp, dp=dp, pp=pp).grid
    for axes in (("tp",), ("dp",), ("pp",), ("tp", "pp"), ("tp", "dp")):
        ours = sorted(map(list, grid.groups(*axes)))
        assert ours == sorted(theirs.get_ranks("-".join(axes))), axes


@pytest.mark.parametrize("ep, etp", [(1, 1), (2, 1), (4, 1), (2, 2), (1, 2)])
def test_our_grid_of_experts_is_megatrons(ep, etp):
    from megatron.core.parallel_state import RankGenerator

    layout = TrainLayout(tp=2, dp=2, pp=2, ep=ep, etp=etp)
    edp = 4 // (ep * etp)
    theirs = RankGenerator(tp=etp, ep=ep, dp=edp, pp=2, cp=1, order="tp-cp-ep-dp-pp")
    grid = layout.expert_grid
    assert isinstance(grid, RankGrid)
    for ours, name in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"), ("pp", "pp")):
        assert sorted(map(list, grid.groups(ours))) == sorted(theirs.get_ranks(name)), name


# Router replay


def test_ids_of_one_byte_and_of_two_are_read_alike():
    ids = np.arange(24).reshape(3, 4, 2)
    for dtype, largest in ((np.uint8, 255), (np.uint16, 60_000)):
        ids[0, 0, 0] = largest
        rows = torch.from_numpy(ids.astype(dtype).view(np.uint8).reshape(3, -1))
        # A row has a column more, so that it does not lie whole in memory.
        rows = torch.cat([rows, rows[:, :1]], dim=-1)[:, :-1]
        assert torch.equal(expert_ids(rows, 4, 2).long(), torch.from_numpy(ids))


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3), st.integers(0, 1000))
def test_experts_are_the_best_of_the_best_groups(num_groups, size, k, seed):
    groups_per_token = 1 + seed % num_groups
    k = min(k, groups_per_token * size)
    scores = torch.randn(5, num_groups * size, generator=torch.Generator().manual_seed(seed))
    values, experts = best_experts(scores, k, num_groups, groups_per_token)
    assert torch.equal(values, scores.gather(1, experts))
    for row, chosen in zip(scores.tolist(), experts.tolist(), strict=True):
        groups = [range(g * size, (g + 1) * size) for g in range(num_groups)]
        groups.sort(key=lambda g: -sum(sorted(row[i] for i in g)[-2:]))
        open_to = [i for group in groups[:groups_per_token] for i in group]
        assert chosen == sorted(open_to, key=lambda i: -row[i])[:k]


def test_without_groups_all_experts_are_open():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.7]])
    assert best_experts(scores, 2, None, None)[1].tolist() == [[1, 3]]
