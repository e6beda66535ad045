"""fully_shard computes what transformers and Megatron-core compute, within 1e-5 in float32: loss,
log-probs, entropy, every row of every gradient that a rank owns, and the gradient norm."""

import math

import pytest
import torch

from tests.mpi import parity
from tests.mpi.engines_for_tests import build_engine, responses, same, some_sequences
from tests.mpi.fsdp_for_tests import gradients_at_step, rows_equal
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.engines.protocol import OutputOptions
from verl_hpc.errors import ClusterError, TrainingError
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(2, 4, often=2)
ON_4 = pytest.mark.world(4)
MODELS = [
    ("llama", False, {}),
    ("qwen2", True, {}),
    ("ernie4_5", True, {}),
    ("llama", True, {"forward_prefetch": True}),
    ("llama", False, {"shard_size": 1}),
    pytest.param("qwen2", True, {"shard_size": 2, "forward_prefetch": True}, marks=ON_4),
]


GIVEN = [
    *("log_probs", "entropy", "untempered", "sum_p_squared"),
    *("top_log_probs", "candidate_log_probs"),
]


def whole_batch(vocab_size):
    """Sequences, of which some begin alike, and how many tokens have a log-prob."""
    sequences = some_sequences(4, vocab_size) + responses(2, 4, vocab_size)
    return sequences, parity.num_targets(sequences)


@pytest.mark.parametrize("family, tied, settings", MODELS, ids=str)
def test_everything_equals_transformers(here, tiny_model, reference, family, tied, settings):
    layout = TrainLayout(dp=here.world.size, shard_size=settings.get("shard_size"))
    directory = tiny_model(family, tied)
    fsdp = FsdpConfig(**settings)
    engine = build_engine(here, directory, layout, engine="fsdp", fsdp=fsdp)
    expected = reference(directory)
    sequences, num_tokens = whole_batch(engine.arch.vocab_size)
    mine = sequences[parity.replica_share(layout)]
    parity.outputs_equal(engine, mine, expected)

    expected.model.zero_grad()
    loss = parity.reference_loss(expected, sequences)
    loss.backward()
    gradients = {n: p.grad for n, p in expected.model.named_parameters()}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm().item()

    seen = gradients_at_step(engine)
    metrics = engine.update(mine, parity.summed(num_tokens))
    assert metrics["loss"] == pytest.approx(loss.item(), abs=parity.TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=parity.TOLERANCE)
    rows_equal(engine, seen, gradients)


@pytest.mark.world(2)
def test_what_else_a_language_model_gives(here, tiny_model):
    layout = TrainLayout(dp=here.world.size)
    directory = tiny_model("llama", False)
    sequences = some_sequences(5, 256)
    mine = sequences[parity.replica_share(layout)]
    candidates = [torch.stack([s[1:], s[:-1]], dim=-1) for s in mine]
    wanted = OutputOptions(untempered=True, sum_p_squared=True, top_k=3, candidates=candidates)
    both = [
        build_engine(here, directory, layout, lr=None, engine=name).infer(mine, 0.7, wanted)
        for name in ("megatron", "fsdp")
    ]
    for expected, output in zip(*both, strict=True):
        assert torch.equal(output.top_tokens, expected.top_tokens)
        both = [{name: vars(outputs)[name] for name in GIVEN} for outputs in (output, expected)]
        same(*both, atol=parity.TOLERANCE)


@pytest.mark.world(2)
def test_weights_leave_and_come_back(here, tiny_model):
    """Offloaded, and exchanged for those of before: what is computed follows."""
    layout = TrainLayout(dp=here.world.size)
    engine = build_engine(here, tiny_model("llama", False), layout, lr=1e-2, engine="fsdp")
    sequences, num_tokens = whole_batch(256)
    mine = sequences[parity.replica_share(layout)]

    def log_probs():
        return torch.cat([o.log_probs for o in engine.infer(mine)])

    first, before = engine.host_copy(), log_probs()
    engine.update(mine, parity.summed(num_tokens))
    after = log_probs()
    assert (before - after).abs().max() > 1e-3
    specs = engine.shard_map.tensors.values()
    padded = sum(-(-s.shape[0] // layout.dp) * s.num_bytes // s.shape[0] for s in specs)
    assert engine.offload("optimizer") == 2 * sum(w.nbytes for w in engine.weights.values())
    assert engine.offload("gradients") == 0
    assert engine.offload("parameters") == padded
    for part in ("parameters", "gradients", "optimizer"):
        engine.onload(part)
    assert torch.equal(log_probs(), after)
    with engine.exchanged(first):
        assert torch.equal(log_probs(), before)
    assert torch.equal(log_probs(), after)
    engine.update(mine, parity.summed(num_tokens))
    assert engine.counters() == {"num_steps": 2}


@pytest.mark.world(2)
def test_what_is_not_finite_changes_nothing(here, tiny_model):
    layout = TrainLayout(dp=here.world.size)
    engine = build_engine(here, tiny_model("llama", False), layout, engine="fsdp")
    mine = some_sequences(here.world.size, 256)[parity.replica_share(layout)]
    before = {n: w.clone() for n, w in engine.weights.items()}

    def broken(_, found):
        factor = math.inf if here.world.rank == 1 else 1.0
        return sum(o.log_probs.sum() for o in found) * factor, {}

    with pytest.raises(TrainingError, match="the model's loss is -inf"):
        engine.update(mine, broken)
    same(engine.weights, before)
    assert engine.counters() == {"num_steps": 0}
    assert math.isfinite(engine.update(mine, parity.summed(100))["grad_norm"])


@pytest.mark.world(2)
def test_bfloat16_computes_with_float32_masters(here, tiny_model):
    """The weights that are kept, and Adam's state, are float32; what is computed is as near to
    float32 as bfloat16 is."""
    layout = TrainLayout(dp=here.world.size)
    directory = tiny_model("llama", False)
    mine = some_sequences(8, 256)[parity.replica_share(layout)]
    computed = {}
    for dtype in ("float32", "bfloat16"):
        engine = build_engine(here, directory, layout, dtype=dtype, engine="fsdp")
        assert {w.dtype for w in engine.weights.values()} == {torch.float32}
        seen = gradients_at_step(engine)
        outputs = engine.infer(mine)
        metrics = engine.update(mine, parity.summed(200))
        assert {g.dtype for g in seen.values()} == {torch.float32}
        computed[dtype] = torch.cat([o.log_probs for o in outputs]), metrics["grad_norm"]
    exact, rounded = computed["float32"], computed["bfloat16"]
    assert 0 < (exact[0] - rounded[0]).abs().max() < 0.1
    assert rounded[1] == pytest.approx(exact[1], rel=0.05)
    frozen = build_engine(here, directory, layout, lr=None, dtype="bfloat16", engine="fsdp")
    assert {w.dtype for w in frozen.weights.values()} == {torch.bfloat16}


@pytest.mark.world(2)
def test_compiling_is_refused_where_the_process_cannot(here, tiny_model):
    settings = FsdpConfig(compile="default")
    with pytest.raises(ClusterError, match="parallel.fsdp.compile = default: .* no GPU"):
        layout = TrainLayout(dp=here.world.size)
        build_engine(here, tiny_model("llama", False), layout, engine="fsdp", fsdp=settings)


@ON_4
def test_of_ranks_with_the_same_rows_each_saves_a_part(here, tiny_model):
    """Every element of weights and moments once, and about as much on every rank."""
    layout = TrainLayout(dp=4, shard_size=2)
    engine = build_engine(
        here, tiny_model("llama", False), layout, engine="fsdp", fsdp=FsdpConfig(shard_size=2)
    )
    engine.update(some_sequences(4, 256)[parity.replica_share(layout)], parity.summed(10))
    mine = engine.optimizer_map(primary=True).held_by(here.world.rank)
    every = here.control.allgather([(r.tensor, r.box) for r in mine])
    boxes = [one for part in every for one in part]
    num_parameters = sum(math.prod(s.shape) for s in engine.shard_map.tensors.values())
    assert len(set(boxes)) == len(boxes)
    assert sum(box.num_elements for _, box in boxes) == 3 * num_parameters
    shares = [sum(box.num_elements for _, box in part) for part in every]
    assert max(shares) < 1.2 * min(shares)
    # And what a rank holds of the two copies is equal to the last bit.
    for name, tensor in engine.optimizer_tensors().items():
        copies = [torch.empty_like(tensor) for _ in range(2)]
        torch.distributed.all_gather(copies, tensor, group=engine._groups.copies)
        assert torch.equal(*copies), name
