"""What fully_shard sends in a step, and what it has whole at a time, in bytes: as docs/fsdp.md and
the memory ledger have it."""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, some_sequences
from tests.mpi.fsdp_bytes import GATHER, REDUCE, SCATTER, counting
from tests.mpi.parity import replica_share, score_loss
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.memory import sharded
from verl_hpc.planner.shape import RoleShape

pytestmark = pytest.mark.world(2, 4, often=2)
ON_4 = pytest.mark.world(4)
LAYERS = 3
ITEM = {"float32": 4, "bfloat16": 2}
# (element type, tied, head, settings of fully_shard)
CASES = [
    ("float32", False, "language_model", {}),
    ("bfloat16", True, "language_model", {"reduce_dtype": "bfloat16"}),
    ("bfloat16", False, "value", {"forward_prefetch": True, "recompute": "full"}),
    ("bfloat16", False, "language_model", {"reshard_after_forward": False}),
    pytest.param("bfloat16", False, "language_model", {"shard_size": 2}, marks=ON_4),
    ("float32", True, "language_model", {"shard_size": 1, "reshard_after_forward": False}),
    ("float32", False, "language_model", {"shard_size": 1}),
]


def built(here, tiny_model, dtype, tied, head, settings, **more):
    """An engine, and what the ledger knows it by; its rows divide over no number of ranks."""
    directory = tiny_model(
        "llama",
        tied,
        num_hidden_layers=LAYERS,
        vocab_size=253,
        hidden_size=36,
        num_attention_heads=6,
        num_key_value_heads=3,
    )
    settings = dict(settings)
    recompute = settings.pop("recompute", "none")
    settings = FsdpConfig(**settings)
    layout = TrainLayout(dp=here.world.size, shard_size=settings.shard_size)
    engine = build_engine(
        here,
        directory,
        layout,
        engine="fsdp",
        dtype=dtype,
        head=head,
        recompute=recompute,
        fsdp=settings,
        **more,
    )
    model = ModelConfig(path="none", dtype=dtype)
    parallel = ParallelConfig(engine="fsdp", fsdp=settings)
    return engine, RoleShape.of(engine.arch, layout, model, parallel, head=head, on_gpu=False)


def padded(engine, where) -> int:
    """Elements of all tensors whose name says so, with as many rows on every rank."""
    shards = engine.layout.num_shards
    found = 0
    for name, spec in engine.shard_map.tensors.items():
        if where(name):
            rows, *rest = spec.shape
            found += -(-rows // shards) * shards * (rest[0] if rest else 1)
    return found


@pytest.mark.parametrize("dtype, tied, head, settings", CASES, ids=str)
def test_bytes_of_a_step(here, tiny_model, dtype, tied, head, settings, micro_batches=2):
    """A micro-batch gathers layers twice and the rest once, and reduces all gradients once."""
    engine, _ = built(here, tiny_model, dtype, tied, head, settings, max_tokens=60)
    size, shards = here.world.size, engine.layout.num_shards
    texts = list(torch.arange(2 * micro_batches * size * 24).mul(97).remainder(253).split(24))
    mine = texts[replica_share(engine.layout)]
    assert len(engine._planner.plan(mine).bins) == micro_batches
    layers = padded(engine, lambda name: name.startswith("model.layers."))
    outside = padded(engine, lambda name: not name.startswith("model.layers."))
    keeps = settings.get("reshard_after_forward") is False
    times = 1 if keeps else 2

    with counting(engine._modules) as counts:
        engine.infer(mine)
    gathered = outside + layers * (1 if keeps else micro_batches)
    expected = {(GATHER, shards): gathered * ITEM[dtype]} if shards > 1 else {}
    assert counts.tensors == expected

    with counting(engine._modules) as counts:
        engine.update(mine, score_loss(head, texts))
    summed = ITEM[settings.get("reduce_dtype", "float32")]
    gathered = micro_batches * (outside + times * layers) * ITEM[dtype]
    gradients = micro_batches * (outside + layers) * summed
    expected = {}
    if shards > 1:
        expected = {(GATHER, shards): gathered, (SCATTER, shards): gradients}
    if shards < size:
        expected[REDUCE, size // shards] = gradients // shards
    assert counts.tensors == expected


@pytest.mark.parametrize("dtype, tied, head, settings", CASES, ids=str)
def test_most_that_is_whole_is_what_the_ledger_says(here, tiny_model, dtype, tied, head, settings):
    engine, shape = built(here, tiny_model, dtype, tied, head, settings)
    texts = some_sequences(2 * here.world.size, 253)
    mine, loss = texts[replica_share(engine.layout)], score_loss(head, texts)
    assert len(engine._planner.plan(mine).bins) == 1
    engine.infer(mine)  # what is allocated once for all

    with counting(engine._modules) as counts:
        engine.infer(mine)
    assert counts.most_whole == sharded.forward(shape)["whole"]

    def backward(indices, outputs):
        counts.begin_backward()
        return loss(indices, outputs)

    twice = engine.arch.vocab_size * engine.arch.hidden_size * ITEM[dtype] if tied else 0
    with counting(engine._modules, held=twice) as counts:
        engine.update(mine, backward)
    terms = sharded.update(shape)
    assert counts.most_whole == terms["whole"]
    assert counts.most_gradients == terms["whole_gradients"]


@pytest.mark.world(2)
@pytest.mark.parametrize("prefetches", [False, True])
def test_a_layer_is_asked_for_before_the_one_ahead_of_it_computes(here, tiny_model, prefetches):
    settings = {"forward_prefetch": prefetches}
    engine, _ = built(here, tiny_model, "float32", False, "language_model", settings)
    seen = []
    with counting(engine._modules) as counts:
        for layer in engine.decoder.model.layers:
            norm = layer.input_layernorm
            norm.register_forward_pre_hook(lambda *_: seen.append(counts.calls[GATHER]))
        engine.infer(some_sequences(1, 253))
    outside_and_first = 2
    assert counts.calls[GATHER] == 1 + LAYERS
    expected = [outside_and_first + layer + prefetches for layer in range(LAYERS)]
    assert seen == [min(n, 1 + LAYERS) for n in expected]
