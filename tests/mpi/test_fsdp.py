"""fully_shard's engine: offloading, what is not finite, element types, copies of the same rows.

What it computes: test_fsdp_updates.py, test_further_outputs.py."""

import math

import pytest
import torch

from tests.mpi import parity
from tests.mpi.engines_for_tests import build_engine, refit, rollout_of, same, some_sequences
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ClusterError, TrainingError
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.transfer.execute import Transfer

pytestmark = pytest.mark.world(2)
DTYPES = ["float32", "bfloat16"]


def test_weights_leave_and_come_back(here, tiny_model):
    """Offloaded, and exchanged for those of before: what is computed follows."""
    layout = TrainLayout(dp=here.world.size)
    engine = build_engine(here, tiny_model("llama", False), layout, lr=1e-2, engine="fsdp")
    sequences = some_sequences(8, 256)
    mine = sequences[parity.replica_share(layout)]

    def log_probs():
        return torch.cat([o.log_probs for o in engine.infer(mine)])

    first, before = engine.host_copy(), log_probs()
    engine.update(mine, parity.summed(200))
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
    engine.update(mine, parity.summed(200))
    assert engine.counters() == {"num_steps": 2}


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


def test_compiling_is_refused_where_the_process_cannot(here, tiny_model):
    settings = FsdpConfig(compile="default")
    with pytest.raises(ClusterError, match="parallel.fsdp.compile = default: .* no GPU"):
        layout = TrainLayout(dp=here.world.size)
        build_engine(here, tiny_model("llama", False), layout, engine="fsdp", fsdp=settings)


@pytest.mark.world(4)
def test_of_ranks_with_the_same_rows_each_saves_a_part(here, tiny_model):
    """Every element of weights and moments once, and about as much on every rank."""
    layout = TrainLayout(dp=4, shard_size=2)
    directory, settings = tiny_model("llama", False, num_hidden_layers=4), FsdpConfig(shard_size=2)
    engine = build_engine(here, directory, layout, engine="fsdp", fsdp=settings)
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


# --- element types: each test has numbers that the other type would round otherwise


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype)).float()


@pytest.mark.parametrize("compute", DTYPES)
@pytest.mark.parametrize("reduce", DTYPES)
def test_gradients_are_summed_in_reduce_dtype(here, tiny_model, compute, reduce):
    """Both ranks have one text, with losses of 256 to 1: bfloat16 has no 257."""
    engine = build_engine(
        here,
        tiny_model("llama", False),
        TrainLayout(dp=here.world.size),
        dtype=compute,
        engine="fsdp",
        fsdp=FsdpConfig(reduce_dtype=reduce),
    )
    text = some_sequences(1, 256)

    def summed(*factors: float) -> dict[str, torch.Tensor]:
        seen, factor = {}, factors[here.world.rank]

        def keep() -> float:
            """In place of a step, so that no weight moves."""
            seen.update({n: g.clone() for n, g in engine.optimizer.gradients().items()})
            return 0.0

        engine.optimizer.step = keep
        engine.update(text, lambda _, found: (found[0].log_probs.sum() * factor, {}))
        return seen

    one, both = summed(0.0, 1.0), summed(256.0, 1.0)
    # Powers of two round nothing: the first rank has 256 times what the second has.
    for name, gradient in one.items():
        wanted, other = (
            rounded(256 * rounded(gradient, d) + rounded(gradient, d), d)
            for d in (reduce, *{*DTYPES} - {reduce})
        )
        assert torch.equal(both[name], wanted), name
        assert (wanted != other)[wanted != 0].float().mean() > 0.9, name


@pytest.mark.parametrize("compute", DTYPES)
def test_layers_compute_with_weights_in_the_models_dtype(here, tiny_model, compute):
    """What is below the last digit of bfloat16 reaches no output of a model in bfloat16."""
    engine = build_engine(
        here, tiny_model("llama", False), TrainLayout(dp=2), dtype=compute, engine="fsdp"
    )
    texts = some_sequences(2, 256)

    def outputs() -> list[torch.Tensor]:
        return [o.log_probs for o in engine.infer(texts)]

    for weight in engine.weights.values():
        weight.copy_(rounded(weight, "bfloat16"))
    coarse = outputs()
    for weight in engine.weights.values():
        weight.mul_(1 + 2.0**-10)
        assert not torch.equal(weight, rounded(weight, "bfloat16"))
    fine = outputs()
    alike = [torch.equal(one, other) for one, other in zip(coarse, fine, strict=True)]
    assert alike == [compute == "bfloat16"] * 2


@pytest.mark.world(2, 4)
@pytest.mark.parametrize("shards", [None, 2])
def test_a_rollout_in_bfloat16_receives_what_it_lacks_in_two_bytes(here, tiny_model, shards):
    """Rounded where it lies: trained weights are float32, and would be twice as much on the way."""
    size, rank = here.world.size, here.world.rank
    directory = tiny_model("qwen2", True, vocab_size=253)
    layout = TrainLayout(dp=size, shard_size=shards)
    engine = build_engine(here, directory, layout, dtype="bfloat16", engine="fsdp")
    texts = some_sequences(size, 253)
    engine.update([texts[rank]], lambda _, found: (found[0].log_probs.sum() / 100, {}))
    limits = RolloutConfig(engine="hf", max_prompt_tokens=32, max_response_tokens=16)
    rollout = rollout_of(here, directory, tuple((r,) for r in range(size)), limits, "bfloat16")
    plan = plan_transfer(engine.shard_map, rollout.shard_map, here.world.node_of)
    stats = refit(rollout, Transfer(plan, rank), engine.weights)
    missing = sum(math.prod(spec.shape) for spec in engine.shard_map.tensors.values())
    missing -= sum(weight.numel() for weight in engine.weights.values())
    assert stats.received_bytes.total() == 2 * missing
    for region in engine.shard_map.held_by(rank):
        arrived = rollout.weights[region.tensor][region.box.slices]
        assert torch.equal(arrived, engine.weights[region.view.name].bfloat16()), region
    every = here.control.allgather([w.float().sum().item() for w in rollout.weights.values()])
    assert all(sums == every[0] for sums in every)
