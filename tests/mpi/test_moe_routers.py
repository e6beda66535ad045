"""The losses of routers, and the load of experts, are those of whole sequences on one rank, in
every layout, however rows are packed."""

import pytest
import torch

from tests.mpi.engines_for_tests import layouts, layouts_of_world, responses, some_sequences
from tests.mpi.mixtures import engine_on, mixture
from tests.mpi.parity import mean_loss_equals, once, reference_update, replica_share
from verl_hpc.config.model import RouterConfig
from verl_hpc.layout.megatron import TrainLayout

LAYOUTS = {
    1: layouts("one full"),
    2: layouts("dp2 tp2 dp2-ep2-full tp2-etp2 pp2 dp2-cp2"),
    4: layouts("tp2-dp2-ep4 pp2-vpp2-dp2-ep2 tp2-dp2-cp2-ep2"),
}
FURTHER = {4: layouts("tp2-pp2-ep2-full")}
UNEVEN = {
    1: layouts("one"),
    2: layouts("dp2-ep2-full pp2-vpp2"),
    4: layouts("dp4-ep2 pp2-vpp2-dp2-ep2"),
    8: layouts("dp8-ep4 pp2-dp4-ep4 pp2-vpp2-dp4-cp2"),
}
UNEVEN_FURTHER = {4: layouts("dp4-cp2-ep2 tp2-dp2-ep2-full")}
SETTINGS = [{"seq_aux_loss": 0.3, "z_loss": 0.05}, {"z_loss": 0.1}, {}]


def pytest_generate_tests(metafunc):
    if "settings" in metafunc.fixturenames:
        layouts_of_world(
            metafunc, LAYOUTS, FURTHER, settings=SETTINGS, model=["normalised", "mixtral"]
        )
    else:
        layouts_of_world(metafunc, UNEVEN, UNEVEN_FURTHER)


def uneven_share(layout: TrainLayout) -> slice:
    """The first replica has all sequences but the last one, which the last replica has; those
    between have none."""
    last = layout.num_replicas - 1
    index = layout.data_grid.coordinates(torch.distributed.get_rank())["dp"]
    if last == 0:
        return slice(None)
    return {0: slice(-1), last: slice(-1, None)}.get(index, slice(0))


def logits_of(model, sequence) -> list[torch.Tensor]:
    """Logits of the routers of all layers, (L, experts) each."""
    logits = []
    gates = [layer.mlp.gate for layer in model.model.layers]
    hooks = [gate.register_forward_hook(lambda *x: logits.append(x[2][0])) for gate in gates]
    model(sequence[None])
    for hook in hooks:
        hook.remove()
    return logits


def of_routers(model, sequences, chosen) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The two losses, summed over layers, and the load, slowly."""
    even, squares, num_tokens = torch.zeros(()), torch.zeros(()), sum(map(len, sequences))
    loads: dict[int, torch.Tensor] = {}
    for sequence in sequences:
        for layer, logits in enumerate(logits_of(model, sequence)):
            length, experts = logits.shape
            probs = logits.softmax(-1)
            for expert in range(experts):
                sent = sum(expert in row for row in logits.topk(chosen).indices.tolist())
                share = sent * experts / (chosen * length)
                even = even + share * probs[:, expert].mean() / len(sequences)
                counts = loads.setdefault(layer, torch.zeros(experts))
                counts[expert] += sent
            squares = squares + logits.exp().sum(-1).log().square().sum() / num_tokens
    load = torch.stack([counts.max() / counts.mean() for counts in loads.values()]).mean()
    return even, squares, load.item()


@pytest.mark.world(*LAYOUTS)
def test_losses_and_load(here, tiny_model, reference, sizes, settings, model):
    directory, family = mixture(tiny_model, model)
    router = RouterConfig(**settings) if settings else None
    engine = engine_on(here, directory, sizes, router=router)
    sequences = some_sequences(5, engine.arch.vocab_size) + responses(2, 4, engine.arch.vocab_size)
    mine = sequences[replica_share(engine.layout)]
    engine.infer(mine)  # of which nothing may be counted
    update_is_right(here, engine, reference, directory, family, sequences, mine, settings)


@pytest.mark.world(*UNEVEN)
def test_replicas_and_stages_that_wait_for_others(here, tiny_model, reference, sizes):
    """What passes through layers meanwhile is nobody's."""
    directory, family = mixture(tiny_model, "normalised")
    settings = {"seq_aux_loss": 0.3, "z_loss": 0.05}
    engine = engine_on(here, directory, sizes, router=RouterConfig(**settings))
    sequences = some_sequences(9, engine.arch.vocab_size)
    mine = sequences[uneven_share(engine.layout)]
    update_is_right(here, engine, reference, directory, family, sequences, mine, settings)


def update_is_right(here, engine, reference, directory, family, sequences, mine, settings) -> None:
    """Hold an update against one of whole sequences in transformers."""

    def by_transformers():
        model = reference(directory)
        even, squares, load = of_routers(model.model, sequences, chosen=2)
        added = settings.get("seq_aux_loss", 0.0) * even + settings.get("z_loss", 0.0) * squares
        update = reference_update(model, family, sequences, added)
        return update, even.item() / 4, squares.item() / 4, load

    update, even, squares, load = once(here, by_transformers)
    metrics = mean_loss_equals(engine, mine, sequences, *update)
    wanted = {"expert_load": load}
    wanted |= {"seq_aux_loss": even} if "seq_aux_loss" in settings else {}
    wanted |= {"z_loss": squares} if settings else {}
    given = {n: metrics[n] for n in metrics if n in ("expert_load", "seq_aux_loss", "z_loss")}
    assert given == pytest.approx(wanted, rel=1e-5)
