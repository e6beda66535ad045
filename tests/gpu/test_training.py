"""Training engines on a GPU: numbers, micro-batches, memory, offloading, random states, FP8."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu import parity
from benchmarks.gpu.setting import (
    GIB,
    architecture,
    build_engine,
    fill_randomly,
    mean_loss,
    random_sequences,
)
from benchmarks.gpu.train import OPTIMIZER, speed_engine, time_steps
from verl_hpc.config.model import Fp8Config
from verl_hpc.errors import ClusterError
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.transfer.execute import Transfer

pytestmark = pytest.mark.gpu

RECIPES = ["delayed", "tensorwise", "blockwise", "mxfp8"]
ONE_LONG_MANY_SHORT = (8192, *[16] * 512)


class peak_memory:  # noqa: N801 (a context manager)
    """Largest allocation inside the block beyond what there was when it began."""

    def __enter__(self):
        torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_):
        torch.cuda.synchronize()
        self.num_bytes = torch.cuda.max_memory_allocated() - self._before


def test_bfloat16_is_transformers_in_float32_up_to_rounding(setting, hold):
    hold(parity.run(setting))


def test_the_loss_falls_on_a_repeated_batch(setting):
    engine = speed_engine(setting, architecture(setting.shapes.model))
    _, losses = time_steps(setting, engine, num_steps=5)
    assert losses[-1] < losses[0]


def test_micro_batches_do_not_change_the_gradient(setting):
    """Gradients are reduced in the background, but only when all micro-batches are through."""
    arch = architecture(setting.shapes.model)
    by_budget = {}
    for max_tokens in (300, 100_000):
        engine = build_engine(setting, arch, optimizer=OPTIMIZER, max_tokens=max_tokens)
        fill_randomly(engine.shard_map, engine.weights)
        engine.weights_changed()
        for count, seed in ((6, 0), (2, 1), (9, 2)):  # other numbers of micro-batches each time
            lengths = [100 + 20 * i for i in range(count)]
            sequences = random_sequences(lengths, arch.vocab_size, setting.device, seed)
            metrics = engine.update(sequences, mean_loss(sum(lengths) - count))
            by_budget.setdefault(max_tokens, []).append((metrics["loss"], metrics["grad_norm"]))
    for few, many in zip(*by_budget.values(), strict=True):
        assert few == pytest.approx(many, rel=0.01)


def test_fully_shard_computes_what_megatron_does(setting):
    """With whatever kernels are here, and with its float32 master weights."""
    arch, lengths = architecture(setting.shapes.model), [100 + 20 * i for i in range(6)]
    sequences = random_sequences(lengths, arch.vocab_size, setting.device, 0)
    given = {"optimizer": OPTIMIZER, "max_tokens": 300}
    one, other = (build_engine(setting, arch, engine=n, **given) for n in ("megatron", "fsdp"))
    fill_randomly(one.shard_map, one.weights)
    plan = plan_transfer(one.shard_map, other.shard_map, [0])
    Transfer(plan, 0).run(one.weights, other.weights, other.dtype)
    results = []
    for engine in (one, other):
        engine.weights_changed()
        results.append(engine.update(sequences, mean_loss(sum(lengths) - len(lengths))))
    expected, metrics = results
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=0.01)
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)


def packed(setting, lengths, dtype, heads=12, kv_heads=2, size=64):
    """A row of these lengths, its ticket, and query, key and value."""
    from verl_hpc.engines.megatron.rows import MicroBatches
    from verl_hpc.engines.shared.packing import pack

    row = pack([torch.zeros(n, dtype=torch.int64, device=setting.device) for n in lengths])
    generator = torch.Generator(setting.device).manual_seed(0)
    given = {"dtype": dtype, "device": setting.device, "generator": generator}
    shapes = [(sum(lengths), 1, n, size) for n in (heads, kv_heads, kv_heads)]
    return MicroBatches.register(row), [torch.randn(*s, **given).requires_grad_() for s in shapes]


def attend(ticket, qkv):
    from verl_hpc.engines.megatron.spec import PackedAttention

    attention = PackedAttention.__new__(PackedAttention)
    torch.nn.Module.__init__(attention)
    attention.scale = None
    return attention(*qkv, ticket)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_memory_of_packed_attention_grows_with_the_row_only(setting, dtype):
    """Neither the scores of the long sequence nor a rectangle as long as it for all the others."""
    ticket, qkv = packed(setting, ONE_LONG_MANY_SHORT, dtype)
    with peak_memory() as peak:
        attend(ticket, qkv).sum().backward()
    inputs = sum(t.numel() * t.element_size() for t in qkv)
    assert peak.num_bytes < 16 * inputs


@pytest.mark.parametrize("dtype, atol", [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)], ids=str)
def test_packed_attention_is_that_of_each_sequence(setting, dtype, atol):
    lengths = (130, 3, 9, 1, 64, 200, 17)
    ticket, qkv = packed(setting, lengths, dtype)
    out = attend(ticket, qkv)
    start = 0
    for length in lengths:
        q, k, v = (t[start : start + length, 0].float().transpose(0, 1)[None] for t in qkv)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        expected = scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
        part = out[start : start + length, 0].float()
        torch.testing.assert_close(part, expected.reshape(length, -1), atol=atol, rtol=0)
        start += length


def test_log_probs_of_a_large_vocabulary_take_little_memory(setting):
    from verl_hpc.engines.shared.log_probs import log_probs_and_entropy

    tokens, vocab = 4096, 151936
    logits = torch.randn(tokens, vocab, dtype=torch.bfloat16, device=setting.device)
    logits.requires_grad_()
    targets = torch.randint(vocab, (tokens,), device=setting.device)
    with peak_memory() as peak:
        log_probs, entropy = log_probs_and_entropy(logits, targets, first_row=0, num_rows=vocab)
        (log_probs.sum() + entropy.sum()).backward()
    gradient = logits.numel() * logits.element_size()
    assert peak.num_bytes < gradient + 3 * GIB


def test_what_is_offloaded_frees_the_device_and_comes_back(setting):
    engine = speed_engine(setting, architecture(setting.shapes.model))
    time_steps(setting, engine, num_steps=1)
    before = {name: tensor.clone() for name, tensor in engine.weights.items()}
    moments = {name: t.clone() for name, t in engine.optimizer.state_tensors().items()}
    for _ in range(2):  # the second trip uses the first one's host memory
        for part in ("optimizer", "gradients", "parameters"):
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            freed = engine.offload(part)
            assert freed > 0
            assert allocated - torch.cuda.memory_allocated() >= freed
            assert torch.cuda.memory_reserved() < reserved
        for part in ("parameters", "gradients", "optimizer"):
            engine.onload(part)
        for name, tensor in engine.weights.items():
            assert torch.equal(tensor, before[name]), name
        for name, tensor in engine.optimizer.state_tensors().items():
            assert torch.equal(tensor, moments[name]), name


def test_first_weights_are_exchanged_for_those_of_now_and_back(setting):
    """Also where page-locked memory has the weights of now, and where it has older ones."""
    engine = speed_engine(setting, architecture(setting.shapes.model))
    first = engine.host_copy()
    assert all(piece.is_pinned() for pieces in first for piece in pieces)
    expected = {name: tensor.clone() for name, tensor in engine.weights.items()}
    for _ in range(2):
        time_steps(setting, engine, num_steps=1)
        now = {name: tensor.clone() for name, tensor in engine.weights.items()}
        for _ in range(2):
            with engine.exchanged(first):
                for name, tensor in engine.weights.items():
                    assert torch.equal(tensor, expected[name]), name
            for name, tensor in engine.weights.items():
                assert torch.equal(tensor, now[name]), name
            engine.offload("parameters")
            engine.onload("parameters")


def test_moments_that_are_made_early_do_not_count_as_a_step(setting):
    """Offloading before the first step makes Adam's moments; its step count stays at zero."""
    arch = architecture(setting.shapes.model)
    sequences = random_sequences([200, 100], arch.vocab_size, setting.device)
    after = []
    for early in (False, True):
        engine = speed_engine(setting, arch)
        if early:
            engine.optimizer.state_tensors()
        engine.update(sequences, mean_loss(298))
        after.append({name: tensor.clone() for name, tensor in engine.weights.items()})
    for name, tensor in after[0].items():
        torch.testing.assert_close(after[1][name], tensor, atol=2e-5, rtol=0.02)


def test_random_states_of_the_device_come_back(setting):
    from verl_hpc.engines.factory import start_layouts
    from verl_hpc.engines.generators import generator_states, restore_generators
    from verl_hpc.layout.megatron import TrainLayout

    start_layouts(setting.here.groups, [TrainLayout()], seed=3)
    states = generator_states()
    assert "cuda" in states
    first = torch.rand(8, device=setting.device)
    restore_generators(states)
    assert torch.equal(torch.rand(8, device=setting.device), first)


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_stays_near_bfloat16(setting, recipe):
    """Rows of any length: they are padded to what the recipe can multiply."""
    from verl_hpc.engines.megatron.precision import has_transformer_engine

    if not has_transformer_engine():
        pytest.skip("Transformer Engine is missing or does not import")
    arch = architecture(setting.shapes.model)
    lengths = (77, 300, 5)
    sequences = random_sequences(lengths, arch.vocab_size, setting.device)
    results = []
    for fp8 in (None, Fp8Config(recipe=recipe)):
        try:
            engine = speed_engine(setting, arch, fp8)
        except ClusterError as error:
            pytest.skip(str(error))
        log_probs = torch.cat([o.log_probs for o in engine.infer(sequences)])
        metrics = engine.update(sequences, mean_loss(sum(lengths) - len(lengths)))
        results.append((log_probs, metrics["loss"], metrics["grad_norm"]))
    (plain, loss, norm), (quantised, fp8_loss, fp8_norm) = results
    assert (plain - quantised).abs().mean() < 0.2
    assert fp8_loss == pytest.approx(loss, rel=0.02)
    assert fp8_norm == pytest.approx(norm, rel=0.2)
