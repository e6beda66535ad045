"""Three updates of a mixture of experts in DeepSeek-V3's shape are those of transformers with
torch's AdamW, within 1e-5 in float32, and leave the biases of its routers as they are."""

import pytest

from tests.mpi.engines_for_tests import gathered, layouts, layouts_of_world, same
from tests.mpi.mixtures import engine_on, mixture
from tests.mpi.parity import TOLERANCE, by_checkpoint_name, once, replica_share, score_loss
from tests.mpi.test_fsdp_updates import BATCHES, CONDITIONED, Model
from tests.mpi.test_reshard import safetensors_of

LAYOUTS = {2: layouts("tp2-ep2"), 4: layouts("pp2-dp2-ep2 tp2-dp2-ep4 tp2-pp2-etp2-full")}


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, {}, LAYOUTS, model=["latent", "direct", "glm", "gated"])


@pytest.mark.world(*LAYOUTS)
def test_three_updates_are_those_of_adamw(here, tiny_model, sizes, model):
    directory, _ = mixture(tiny_model, model)
    engine = engine_on(here, directory, sizes, **CONDITIONED)
    first = safetensors_of(directory)

    def by_transformers():
        expected = Model(directory, "language_model", {})
        losses = [expected.update(batch)[:2] for batch in BATCHES]
        return losses, by_checkpoint_name(expected.copied())

    updates, weights = once(here, by_transformers)
    for batch, (loss, norm) in zip(BATCHES, updates, strict=True):
        mine = batch[replica_share(engine.layout)]
        metrics = engine.update(mine, score_loss("language_model", batch))
        assert metrics["loss"] == pytest.approx(loss, rel=TOLERANCE)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=10 * TOLERANCE)
    trained = gathered(here, engine.shard_map, engine.weights)
    assert all((weights[n] - first[n]).abs().max() > 5e-4 for n in weights)
    biases = {name: first[name] for name in engine.arch.buffers}
    same(trained, weights | biases, TOLERANCE)
