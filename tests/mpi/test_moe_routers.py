"""The losses of routers, and the load of experts, are those of whole sequences on one rank, in
every layout, however rows are packed."""

from statistics import mean

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
BIASED = [{"bias_update_rate": 0.01}, {"seq_aux_loss": 0.3, "bias_update_rate": 0.01}]


def pytest_generate_tests(metafunc):
    if "settings" in metafunc.fixturenames:
        layouts_of_world(
            metafunc, LAYOUTS, FURTHER, settings=SETTINGS, model=["normalised", "mixtral"]
        )
    elif "biased" in metafunc.fixturenames:
        first, *others = LAYOUTS[4]
        further = LAYOUTS | {4: others + FURTHER[4]}
        layouts_of_world(metafunc, {4: [first]}, further, biased=BIASED)
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


def routed(model, sequence) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits of each layer with experts, (L, experts), and the experts of its tokens, (L, k)."""
    found = []
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    hooks = [g.register_forward_hook(lambda *x: found.append((x[2][0], x[2][2]))) for g in gates]
    model(sequence[None])
    for hook in hooks:
        hook.remove()
    return found


def of_routers(model, sequences, chosen, sigmoid) -> tuple[torch.Tensor, torch.Tensor, list]:
    """The two losses, summed over layers, and the tokens of each layer's experts, slowly."""
    even, squares, num_tokens = torch.zeros(()), torch.zeros(()), sum(map(len, sequences))
    loads: dict[int, list[int]] = {}
    for sequence in sequences:
        for layer, (logits, experts_of) in enumerate(routed(model, sequence)):
            length, experts = logits.shape
            scores = logits.sigmoid() if sigmoid else logits.exp()
            shares = scores / scores.sum(-1, keepdim=True)
            best = logits.topk(chosen).indices.tolist()
            for expert in range(experts):
                share = sum(expert in row for row in best) * experts / (chosen * length)
                even = even + share * shares[:, expert].mean() / len(sequences)
                counts = loads.setdefault(layer, [0] * experts)
                counts[expert] += sum(expert in row for row in experts_of.tolist())
            squares = squares + logits.exp().sum(-1).log().square().sum() / num_tokens
    return even, squares, list(loads.values())


@pytest.mark.world(*LAYOUTS)
def test_losses_and_load(here, tiny_model, reference, sizes, settings, model):
    directory, family = mixture(tiny_model, model)
    router = RouterConfig(**settings) if settings else None
    engine = engine_on(here, directory, sizes, router=router)
    sequences = some_sequences(5, engine.arch.vocab_size) + responses(2, 4, engine.arch.vocab_size)
    mine = sequences[replica_share(engine.layout)]
    engine.infer(mine)  # of which nothing may be counted
    update_is_right(here, engine, reference, directory, family, sequences, mine, settings)


@pytest.mark.world(*LAYOUTS)
def test_biases_follow_the_load(here, tiny_model, reference, sizes, biased):
    test_losses_and_load(here, tiny_model, reference, sizes, biased, "latent")


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
        even, squares, loads = of_routers(model.model, sequences, 2, family == "deepseek_v3")
        added = settings.get("seq_aux_loss", 0.0) * even + settings.get("z_loss", 0.0) * squares
        update = reference_update(model, family, sequences, added)
        return update, even.item() / len(loads), squares.item() / len(loads), loads

    update, even, squares, loads = once(here, by_transformers)
    before = biases(engine)
    metrics = mean_loss_equals(engine, mine, sequences, *update)
    wanted = {"expert_load": mean(max(load) / mean(load) for load in loads)}
    wanted |= {"seq_aux_loss": even} if "seq_aux_loss" in settings else {}
    wanted |= {"z_loss": squares} if "z_loss" in settings else {}
    given = {n: metrics[n] for n in metrics if n in ("expert_load", "seq_aux_loss", "z_loss")}
    assert given == pytest.approx(wanted, rel=1e-5)
    balanced(engine, before, loads, settings.get("bias_update_rate", 0.0))


def biases(engine) -> dict[int, torch.Tensor]:
    """Biases of this rank's routers by layer."""
    held = engine.shard_map.held_by(torch.distributed.get_rank())
    found = {r.tensor: engine.weights[r.view.name].clone() for r in held if "_bias" in r.tensor}
    return {int(name.split(".")[2]): bias for name, bias in found.items()}


def balanced(engine, before, loads, rate) -> None:
    """Each bias has gone up for experts below the mean load, and down for those above it."""
    num_dense = engine.arch.num_layers - len(loads)
    for layer, bias in biases(engine).items():
        load = loads[layer - num_dense]
        for expert, tokens in enumerate(load):
            change = rate * ((tokens < mean(load)) - (tokens > mean(load)))
            assert bias[expert] == pytest.approx(before[layer][expert].item() + change, abs=1e-7)
