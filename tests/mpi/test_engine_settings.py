"""Settings of the Megatron engine change what a step costs, not what it computes."""

import pytest
import torch

from tests.mpi.conftest import Reference
from tests.mpi.engines_for_tests import build_engine, held, same, some_sequences
from tests.mpi.parity import (
    mean_loss_equals,
    num_targets,
    once,
    reference_loss,
    reference_update,
    replica_share,
    summed,
)
from tests.mpi.storages import storage_bytes
from verl_hpc.engines.megatron import optimizer, passes
from verl_hpc.errors import TrainingError
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(2, 4, often=2)


def step(engine, sequences):
    """Metrics of one optimizer step and this replica's log-probs before it."""
    mine = sequences[replica_share(engine.layout)]
    before = [o.log_probs for o in engine.infer(mine)]
    metrics = engine.update(mine, summed(num_targets(sequences)))
    return metrics, torch.cat(before)


def layout_of(here, **sizes):
    sizes = sizes or {"tp": 2}
    return TrainLayout(**sizes, dp=here.world.size // TrainLayout(**sizes).grid.size)


RECOMPUTES = [
    # settings, and how many more times layers, attention and mlp of four layers are computed
    (dict(recompute="full"), (4, 4, 4)),
    (dict(recompute="full", recompute_num_layers=2), (4, 4, 4)),
    (dict(recompute="full", recompute_method="block"), (1, 1, 1)),
    (dict(recompute="selective"), (0, 0, 4)),
    (dict(recompute="selective", recompute_modules=["core_attn"]), (0, 4, 0)),
    (dict(recompute="selective", recompute_modules=["core_attn", "mlp"]), (0, 4, 4)),
]


@pytest.mark.world(2)
@pytest.mark.parametrize("settings, again", RECOMPUTES, ids=lambda v: "-".join(map(str, v)))
def test_recomputed_activations_give_the_same_gradients(
    here, tiny_model, reference, settings, again
):
    directory = tiny_model("llama", False, num_hidden_layers=4)
    sequences = some_sequences(8, 256)
    engine = build_engine(here, directory, layout_of(here), max_tokens=10_000, **settings)
    counts = count_forwards(engine)
    mine = sequences[replica_share(engine.layout)]
    engine.infer(mine)
    update = once(here, lambda: reference_update(reference(directory), "llama", sequences))
    mean_loss_equals(engine, mine, sequences, *update)
    # Once to infer, once to update.
    assert counts == {
        name: 2 * 4 + more
        for name, more in zip(("TransformerLayer", "PackedAttention", "MLP"), again, strict=True)
    }


@pytest.mark.world(2)
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 2}], ids=str)
def test_an_optimizer_step_runs_the_schedule_once(here, tiny_model, monkeypatch, sizes):
    """The weight gradients of a schedule's first micro-batch overwrite what is there, where
    Transformer Engine's products add them up: a second schedule would lose those of the first."""
    engine = build_engine(here, tiny_model("llama", False), layout_of(here, **sizes), max_tokens=64)
    schedule, begun = passes.get_forward_backward_func, []

    def noted():
        gradients = [buffer.grad_data for chunk in engine._chunks for buffer in chunk.buffers]
        begun.append(not any(bool(gradient.any()) for gradient in gradients))
        return schedule()

    monkeypatch.setattr(passes, "get_forward_backward_func", noted)
    sequences = some_sequences(8, 256)
    assert len(engine._planner.plan(sequences).bins) > 1
    for _ in range(2):
        engine.update(sequences, summed(50))
    assert (engine.optimizer.num_steps, begun) == (2, [True, True])


def count_forwards(engine):
    """Forward passes by kind of module, counted from now on."""
    counts = dict.fromkeys(("TransformerLayer", "PackedAttention", "MLP"), 0)

    def count(module, *_):
        counts[type(module).__name__] += 1

    for chunk in engine._chunks:
        for module in chunk.modules():
            if type(module).__name__ in counts:
                module.register_forward_pre_hook(count)
    return counts


@pytest.mark.parametrize("sizes", [dict(), dict(pp=2, vpp=2)], ids=str)
def test_gradients_that_are_reduced_in_the_background(here, tiny_model, monkeypatch, sizes):
    """GPUs do so, in several buckets; steps have different numbers of micro-batches."""
    directory = tiny_model("llama", False, num_hidden_layers=4)
    batches = [some_sequences(n, 256, seed=n) for n in (4, 12, 6)]
    layout = layout_of(here, **sizes) if sizes else TrainLayout(dp=here.world.size)
    plain = build_engine(here, directory, layout, max_tokens=64)
    expected = [step(plain, batch)[0] for batch in batches]

    class Overlapping(optimizer.DistributedDataParallelConfig):
        def __init__(self, **settings):
            super().__init__(**settings | {"overlap_grad_reduce": True, "bucket_size": 5_000})

    monkeypatch.setattr(optimizer, "DistributedDataParallelConfig", Overlapping)
    whole = optimizer.DistributedDataParallel

    def in_buckets(*arguments, **settings):
        return whole(*arguments, **settings | {"disable_bucketing": False})

    monkeypatch.setattr(optimizer, "DistributedDataParallel", in_buckets)
    monkeypatch.setattr(
        "megatron.core.distributed.param_and_grad_buffer.dist_reduce_scatter_func",
        torch.distributed.reduce_scatter_tensor,
    )
    engine = build_engine(here, directory, layout, max_tokens=64)
    if layout.dp > 1 and layout.pp == 1:  # a stage of this model may be one bucket
        assert len(engine._chunks[0].buffers[0].buckets) > 1
    assert [step(engine, batch)[0] for batch in batches] == [
        pytest.approx(metrics, rel=1e-6) for metrics in expected
    ]
    same(engine.weights, plain.weights, atol=1e-6)


def test_bfloat16_is_close_and_keeps_float32_masters(here, tiny_model, reference):
    directory, sequences = tiny_model("llama", False), some_sequences(8, 256)
    engine = build_engine(here, directory, layout_of(here), dtype="bfloat16")
    assert {w.dtype for w in engine.weights.values()} == {torch.bfloat16}
    assert {t.dtype for t in engine.optimizer.state_tensors().values()} == {torch.float32}
    metrics, log_probs = step(engine, sequences)
    with torch.no_grad():
        loss = reference_loss(reference(directory), sequences).item()
        mine = sequences[replica_share(engine.layout)]
        theirs = torch.cat([reference(directory).log_probs(s) for s in mine])
    assert metrics["loss"] == pytest.approx(loss, rel=1e-2)
    assert (log_probs - theirs).abs().max() < 0.1


def test_the_optimizer_is_adamw_with_clipping(here, tiny_model, reference):
    """Three steps end where torch's AdamW ends, on the whole tensors."""
    directory, sequences = tiny_model("llama", False), some_sequences(8, 256)
    engine = build_engine(here, directory, layout_of(here), lr=1e-3, clip_grad=0.5)
    own = Reference(directory)  # the shared one keeps its weights
    model = own.model
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    theirs = torch.optim.AdamW(model.parameters(), **settings)
    for _ in range(3):
        step(engine, sequences)
        reference_loss(own, sequences).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        theirs.step()
        theirs.zero_grad()
    expected = dict(model.named_parameters())
    for region in engine.shard_map.held_by(here.world.rank):
        # A gradient next to zero decides the sign of Adam's first update: 2 lr at the worst.
        wanted = expected[region.tensor].detach()[region.box.slices]
        difference = (held(engine.weights, region) - wanted).abs()
        assert difference.mean() < 1e-6, region
        assert difference.max() < 2.5e-3, region


def test_a_step_prepares_its_gradients_once(here, tiny_model, monkeypatch):
    engine = build_engine(here, tiny_model("llama", False), layout_of(here), clip_grad=0.5)
    (shard,), calls = engine.optimizer._shards, []
    for name in ("prepare_grads", "get_grad_norm", "step_with_ready_grads"):
        real = getattr(shard, name)
        monkeypatch.setattr(shard, name, lambda n=name, r=real: calls.append(n) or r())
    step(engine, some_sequences(8, 256))
    assert calls == ["prepare_grads", "get_grad_norm", "step_with_ready_grads"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_offloaded_frees_its_bytes_and_comes_back(here, tiny_model, dtype):
    directory, sequences = tiny_model("llama", False), some_sequences(6, 256)
    layout = layout_of(here)
    undisturbed = build_engine(here, directory, layout, dtype=dtype)
    step(undisturbed, sequences)
    expected, _ = step(undisturbed, sequences)

    engine = build_engine(here, directory, layout, dtype=dtype)
    step(engine, sequences)
    parts = ("optimizer", "gradients", "parameters")
    # How many bytes: test_what_is_offloaded_is_what_the_ledger_takes_away.
    assert all(engine.offload(part) > 0 for part in parts)
    assert storage_bytes(engine.weights.values()) == 0
    assert [engine.offload(part) for part in parts] == [0, 0, 0]
    for part in parts:
        engine.onload(part)
    metrics, _ = step(engine, sequences)
    assert metrics == expected
    same(engine.weights, undisturbed.weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_weights_are_exchanged_for_those_of_now_and_back(here, tiny_model, dtype):
    directory, sequences = tiny_model("llama", False), some_sequences(6, 256)
    engine = build_engine(here, directory, layout_of(here), dtype=dtype)
    first, expected = engine.host_copy(), engine.infer(sequences)
    for _ in range(2):
        step(engine, sequences)
        now = {name: weight.clone() for name, weight in engine.weights.items()}
        engine.offload("parameters")
        engine.onload("parameters")
        for _ in range(2):
            with engine.exchanged(first):
                outputs = engine.infer(sequences)
            for one, other in zip(outputs, expected, strict=True):
                assert torch.equal(one.log_probs, other.log_probs)
            same(engine.weights, now)


def test_a_loss_that_is_not_finite_is_told_by_the_models_name(here, tiny_model):
    engine = build_engine(here, tiny_model("llama", False), layout_of(here), head="value")
    with pytest.raises(TrainingError, match="the model's loss is nan; the weights were left"):
        engine.update(
            some_sequences(4, 256),
            lambda _, outputs: (sum(o.values.sum() for o in outputs) * torch.nan, {}),
        )
