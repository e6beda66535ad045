"""fully_shard computes what transformers and Megatron-core compute, within 1e-5 in float32.

Loss, log-probs, entropy, every row of every gradient that a rank owns, the gradient norm, and the
weights behind an update.
"""

import math

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, held, responses, some_sequences
from tests.mpi.parity import TOLERANCE, outputs_equal, replica_share
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.engines.protocol import Wanted
from verl_hpc.errors import ClusterError, TrainingError
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.transfer.execute import Transfer

pytestmark = pytest.mark.world(2, 4)
ON_4 = pytest.mark.world(4)
MODELS = [
    ("llama", False, {}),
    ("qwen2", True, {}),
    ("ernie4_5", True, {}),
    ("llama", True, {"forward_prefetch": True}),
    ("llama", False, {"shard_size": 1}),
    pytest.param("qwen2", True, {"shard_size": 2, "forward_prefetch": True}, marks=ON_4),
]


def gradients_at_step(engine):
    """Filled in the engine's next update: reduced gradients of this rank's rows."""
    seen, step = {}, engine.optimizer.step

    def spy():
        seen.update({name: g.clone() for name, g in engine.optimizer.gradients().items()})
        return step()

    engine.optimizer.step = spy
    return seen


def summed(num_tokens):
    return lambda _, found: (-sum(o.log_probs.sum() for o in found) / num_tokens, {})


def whole_batch(vocab_size):
    """Sequences, of which some begin alike, and how many tokens have a log-prob."""
    sequences = some_sequences(4, vocab_size) + responses(2, 4, vocab_size)
    return sequences, sum(len(s) - 1 for s in sequences)


@pytest.mark.parametrize("family, tied, settings", MODELS, ids=str)
def test_everything_equals_transformers(here, tiny_model, reference, family, tied, settings):
    layout = TrainLayout(dp=here.world.size, shard_size=settings.get("shard_size"))
    directory = tiny_model(family, tied)
    fsdp = FsdpConfig(**settings)
    engine = build_engine(here, directory, layout, engine="fsdp", fsdp=fsdp)
    expected = reference(directory)
    sequences, num_tokens = whole_batch(engine.arch.vocab_size)
    mine = sequences[replica_share(layout)]
    outputs_equal(engine, mine, expected)

    loss = -sum(expected.log_probs(s).sum() for s in sequences) / num_tokens
    expected.model.zero_grad()
    loss.backward()
    gradients = {n: p.grad for n, p in expected.model.named_parameters()}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm().item()

    seen = gradients_at_step(engine)
    metrics = engine.update(mine, summed(num_tokens))
    assert metrics["loss"] == pytest.approx(loss.item(), abs=TOLERANCE)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE)
    owned = engine.shard_map.held_by(here.world.rank)
    assert {region.view.name for region in owned} == set(seen)
    for region in owned:
        wanted = gradients[region.tensor][region.box.slices]
        torch.testing.assert_close(held(seen, region), wanted, atol=TOLERANCE, rtol=0)


def rows_like(here, engine, other):
    """What another engine's parameters hold, on the rows of this one."""
    memory = {n: torch.empty_like(w) for n, w in engine.weights.items()}
    plan = plan_transfer(other.shard_map, engine.shard_map, here.world.node_of)
    Transfer(plan, here.world.rank).run(other.weights, memory, torch.float32)
    return memory


def score_loss(head, sequences):
    """Of outputs of any head, whatever the micro-batches."""
    name = {"language_model": "log_probs", "value": "values", "score": "scores"}[head]
    size = sum(len(s) for s in sequences)
    return lambda _, found: (sum(getattr(o, name).square().sum() for o in found) / size, {})


SETTINGS = [
    pytest.param(dict(head="value"), marks=ON_4),
    pytest.param(dict(head="score"), marks=ON_4),
    pytest.param(dict(recompute="full"), marks=ON_4),
    pytest.param(dict(fsdp=FsdpConfig(reshard_after_forward=False), clip_grad=0.1), marks=ON_4),
    # Adam that divides by no tiny moment, which would make steps of what is rounding.
    dict(epsilon=0.1, lr=1e-1),
    pytest.param(
        dict(fsdp=FsdpConfig(shard_size=2), epsilon=0.1, lr=1e-1, max_tokens=40, clip_grad=1.0),
        marks=ON_4,
    ),
    # As much decay as half a step of rounding does not hide; norms have none.
    dict(max_tokens=40, weight_decay=10.0),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_updates_equal_megatron(here, tiny_model, settings):
    """Also where a rank has fewer sequences than others, or none."""
    settings = dict(settings)
    ours = {n: settings.pop(n) for n in ("fsdp", "recompute") if n in settings}
    size = ours["fsdp"].shard_size if "fsdp" in ours else None
    layouts = {"megatron": None, "fsdp": size}
    classifier = {"head": "score"} if settings.get("head") == "score" else {}
    directory = tiny_model("qwen3", not classifier, **classifier)
    # Three steps: the second is of moments, and one sequence leaves all ranks but one without.
    batches = [some_sequences(7, 256, seed=1), some_sequences(1, 256), some_sequences(9, 256)]
    found = {}
    for name, more in (("megatron", {}), ("fsdp", {"engine": "fsdp", **ours})):
        layout = TrainLayout(dp=here.world.size, shard_size=layouts[name])
        engine = build_engine(here, directory, layout, **settings, **more)
        if engine.head == "value":
            fill_head(engine, here.world.rank)
        mine, first = replica_share(layout), {n: w.clone() for n, w in engine.weights.items()}
        outputs = engine.infer(batches[0][mine])
        loss = [score_loss(engine.head, batch) for batch in batches]
        steps = [engine.update(b[mine], one) for b, one in zip(batches, loss, strict=True)]
        found[name] = engine, outputs, steps
    (one, *expected), (other, *mine) = found["megatron"], found["fsdp"]
    for theirs, ours_ in zip(expected[0], mine[0], strict=True):
        for field, value in vars(theirs.detached()).items():
            if value is not None:
                torch.testing.assert_close(getattr(ours_, field), value, atol=TOLERANCE, rtol=0)
    for theirs, ours_ in zip(expected[1], mine[1], strict=True):
        assert ours_ == pytest.approx(theirs, rel=TOLERANCE, abs=1e-7)
    after = rows_like(here, other, one)
    for name, weight in other.weights.items():
        # Adam divides by the root of the second moment: of the tiniest gradients, half a step is
        # rounding.
        far = TOLERANCE if "epsilon" in settings else 5e-4
        torch.testing.assert_close(weight, after[name], atol=far, rtol=0)
        if "epsilon" in settings:
            assert (weight - first[name]).abs().max() > 100 * TOLERANCE, name


def fill_head(engine, rank):
    """A head that is not there starts at zero, and trains nothing below it."""
    name = HEAD_TENSORS[engine.head]
    whole = torch.linspace(-1, 1, engine.arch.hidden_size)[None]
    for region in engine.shard_map.held_by(rank):
        if region.tensor == name:
            local = engine.weights[region.view.name].view(-1)
            local[: whole.numel()] = whole[region.box.slices].flatten()
    engine.weights_changed()


@pytest.mark.world(2)
def test_what_else_a_language_model_gives(here, tiny_model):
    layout = TrainLayout(dp=here.world.size)
    directory = tiny_model("llama", False)
    sequences = some_sequences(5, 256)
    mine = sequences[replica_share(layout)]
    candidates = [torch.stack([s[1:], s[:-1]], dim=-1) for s in mine]
    wanted = Wanted(untempered=True, sum_p_squared=True, top_k=3, candidates=candidates)
    both = [
        build_engine(here, directory, layout, lr=None, engine=name).infer(mine, 0.7, wanted)
        for name in ("megatron", "fsdp")
    ]
    for expected, found in zip(*both, strict=True):
        assert torch.equal(found.top_tokens, expected.top_tokens)
        for name in ("log_probs", "entropy", "untempered", "sum_p_squared"):
            one, other = getattr(found, name), getattr(expected, name)
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)
        for name in ("top_log_probs", "candidate_log_probs"):
            one, other = getattr(found, name), getattr(expected, name)
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)


@pytest.mark.world(2)
def test_weights_leave_and_come_back(here, tiny_model):
    """Offloaded, and exchanged for those of before: what is computed follows."""
    layout = TrainLayout(dp=here.world.size)
    engine = build_engine(here, tiny_model("llama", False), layout, lr=1e-2, engine="fsdp")
    sequences, num_tokens = whole_batch(256)
    mine = sequences[replica_share(layout)]

    def log_probs():
        return torch.cat([o.log_probs for o in engine.infer(mine)])

    first, before = engine.host_copy(), log_probs()
    engine.update(mine, summed(num_tokens))
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
    engine.update(mine, summed(num_tokens))
    assert engine.counters() == {"num_steps": 2}


@pytest.mark.world(2)
def test_what_is_not_finite_changes_nothing(here, tiny_model):
    layout = TrainLayout(dp=here.world.size)
    engine = build_engine(here, tiny_model("llama", False), layout, engine="fsdp")
    mine = some_sequences(here.world.size, 256)[replica_share(layout)]
    before = {n: w.clone() for n, w in engine.weights.items()}

    def broken(_, found):
        factor = math.inf if here.world.rank == 1 else 1.0
        return sum(o.log_probs.sum() for o in found) * factor, {}

    with pytest.raises(TrainingError, match="the model's loss is -inf"):
        engine.update(mine, broken)
    for name, weight in engine.weights.items():
        assert torch.equal(weight, before[name]), name
    assert engine.counters() == {"num_steps": 0}
    assert math.isfinite(engine.update(mine, summed(100))["grad_norm"])


@pytest.mark.world(2)
def test_bfloat16_computes_with_float32_masters(here, tiny_model):
    """The weights that are kept, and Adam's state, are float32; what is computed is as near to
    float32 as bfloat16 is."""
    layout = TrainLayout(dp=here.world.size)
    directory = tiny_model("llama", False)
    mine = some_sequences(8, 256)[replica_share(layout)]
    found = {}
    for dtype in ("float32", "bfloat16"):
        engine = build_engine(here, directory, layout, dtype=dtype, engine="fsdp")
        assert {w.dtype for w in engine.weights.values()} == {torch.float32}
        seen = gradients_at_step(engine)
        outputs = engine.infer(mine)
        metrics = engine.update(mine, summed(200))
        assert {g.dtype for g in seen.values()} == {torch.float32}
        found[dtype] = torch.cat([o.log_probs for o in outputs]), metrics["grad_norm"]
    exact, rounded = found["float32"], found["bfloat16"]
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
    engine.update(some_sequences(4, 256)[replica_share(layout)], summed(10))
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
