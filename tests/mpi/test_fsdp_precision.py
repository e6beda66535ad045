"""fully_shard's two element types: that of what layers compute with, and that in which gradients
are summed over ranks. Each test has numbers that the other type would round otherwise."""

import pytest
import torch

from tests.mpi.engines_for_tests import build_engine, some_sequences
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(2)
DTYPES = ["float32", "bfloat16"]


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype)).float()


@pytest.mark.parametrize("compute", DTYPES)
@pytest.mark.parametrize("reduce", DTYPES)
def test_gradients_are_summed_in_reduce_dtype(here, tiny_model, compute, reduce):
    """Of one text on both ranks, whose losses are 256 to 1: bfloat16 knows no 257."""
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
