"""fully_shard's two element types: that of what layers compute with, and that in which gradients
are summed over ranks. Each test has numbers that the other type would round otherwise."""

import math

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, refit, rollout_of, some_sequences
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.transfer.execute import Transfer

pytestmark = pytest.mark.world(2)
BOTH = pytest.mark.world(2, 4)
DTYPES = ["float32", "bfloat16"]


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
    same = [torch.equal(one, other) for one, other in zip(coarse, fine, strict=True)]
    assert same == [compute == "bfloat16"] * 2


@BOTH
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
    assert stats.total_received_bytes == 2 * missing
    for region in engine.shard_map.held_by(rank):
        arrived = rollout.weights[region.tensor][region.box.slices]
        assert torch.equal(arrived, engine.weights[region.view.name].bfloat16()), region
    every = here.control.allgather([w.float().sum().item() for w in rollout.weights.values()])
    assert all(sums == every[0] for sums in every)
