"""An actor and a critic with adapters whose frozen weights are in memory once: nothing that they
compute differs by a bit from engines with a copy each."""

from functools import partial

import pytest
import torch

from tests.jobs.launch import differing
from tests.mpi.engines_for_tests import layouts_of_world, same, some_sequences
from tests.mpi.lora_for_tests import fill, some_adapters
from tests.mpi.mixtures import MODELS
from tests.mpi.recipe_runs import BATCH, RECIPES, configure, finish, write_reward
from tests.mpi.storages import storage_bytes
from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Position
from verl_hpc.engines.protocol import TrainingEngine
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.trainer.build import plan_run
from verl_hpc.trainer.build_roles import build_engines
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.saves import save
from verl_hpc.trainer.state import Progress
from verl_hpc.trainer.sync import PARTS, device_to_itself

SIZES = {
    1: [{}],
    2: [{"tensor_parallel": 2, "sequence_parallel": True}, {"data_parallel": 2}],
    4: [{"tensor_parallel": 2, "pipeline_parallel": 2}, {"expert_parallel": 2, "dtype": "float32"}],
}
HAS_GONE = {"parameters": True, "gradients": True, "optimizer": True}


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, SIZES)


def ppo(here, model, directory, sizes, **changes) -> RunConfig:
    tree = RECIPES["ppo"] | {
        "parallel": {name: n for name, n in sizes.items() if name != "dtype"},
        "lora": {"rank": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]},
        "optimizer": {"lr": 1e-2},
        "roles": {"critic": {"optimizer": {"lr": 1e-2}, "lora": {"rank": 2}}},
        "reward": {"function": write_reward(here, directory)},
    }
    config = configure("shared-base", model, directory, **(tree | changes))
    return changed(config, model={"path": str(model), "dtype": sizes.get("dtype", "bfloat16")})


def changed(config: RunConfig, **changes) -> RunConfig:
    return parse_config(config.model_dump(exclude_unset=True) | changes)


def without(config: RunConfig) -> RunConfig:
    """A run with a copy of the base for each role."""
    lora = config.lora.model_dump(exclude_unset=True) | {"share_base": False}
    return changed(config, lora=lora, name=config.name + "-apart")


def built(here, config: RunConfig) -> RunContext:
    """A run's roles, without what generates."""
    run = plan_run(here, config)
    run.rollout = None
    build_engines(run, here.enter, False)
    return run


def engines(run: RunContext) -> list[TrainingEngine]:
    both = [run.roles[name].training for name in ("actor", "critic")]
    for engine in both:
        adapters = some_adapters(engine, seed=1)
        fill(engine, {n: t.to(engine.dtype) for n, t in adapters.items()})
    return both


def outputs(engine: TrainingEngine, sequences) -> list[torch.Tensor]:
    return [
        tensor.clone()
        for found in engine.infer(sequences)
        for tensor in (found.log_probs, found.values)
        if tensor is not None
    ]


def update(engine: TrainingEngine, sequences) -> list[torch.Tensor]:
    """What it says, its gradients, and its weights after two updates."""

    def loss(_, computed):
        parts = [(o.log_probs if o.values is None else (o.values - 1) ** 2).sum() for o in computed]
        return sum(parts) / 100, {}

    computed = outputs(engine, sequences)
    for _ in range(2):
        engine.update(sequences, loss)
        buffers = [b for c in engine._chunks for b in (*c.buffers, *c.expert_parallel_buffers)]
        computed += [buffer.grad_data.clone() for buffer in buffers]
    weights = [engine.weights[name].clone() for name in sorted(engine.weights)]
    return computed + weights + outputs(engine, sequences)


identical = partial(torch.testing.assert_close, rtol=0, atol=0)


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.world(1, 2, 4)
def test_both_compute_what_they_do_apart_and_hold_the_base_once(
    here, tiny_model, shared_directory, sizes
):
    _, fields = MODELS["normalised"] if "expert_parallel" in sizes else (None, {})
    family = "qwen3_moe" if fields else "qwen3"
    model = tiny_model(family, num_hidden_layers=2, num_key_value_heads=4, **fields)
    config = ppo(here, model, shared_directory, sizes, offload=HAS_GONE)
    apart = built(here, without(config))
    assert not apart.layouts.bases
    sequences = some_sequences(4, apart.arch.vocab_size)
    expected = [update(engine, sequences) for engine in engines(apart)]

    run = built(here, config)
    assert run.layouts.bases == {"critic": "actor"}
    actor, critic = engines(run)
    frozen = [name for name, p in critic.parameters.items() if not p.requires_grad]
    assert len(frozen) >= 9
    before = {name: critic.weights[name].clone() for name in frozen}
    for name in frozen:
        assert critic.weights[name].data_ptr() == actor.weights[name].data_ptr(), name
        assert critic.parameters[name].data_ptr() == actor.parameters[name].data_ptr(), name
    own = {storage(critic.weights[name]) for name in critic.weights if name not in frozen}
    assert not own & {storage(weight) for weight in actor.weights.values()}

    # Updates of one leave what the other computes as it is.
    value = outputs(critic, sequences)
    shared = [update(actor, sequences)]
    identical(outputs(critic, sequences), value)
    shared.append(update(critic, sequences))
    identical(shared, expected)
    same({name: actor.weights[name] for name in frozen}, before)

    counted = ledger(config, run.arch, run.layouts, Hardware(KINDS["cpu"], here.world.size))
    device = {p.name: p for p in counted.of_rank(here.world.rank)}["update"].device
    weights = list(actor.weights.values())
    assert device["actor.weights"] == storage_bytes(weights)
    everything = storage_bytes([*weights, *critic.weights.values()])
    assert device["actor.weights"] + device["critic.weights"] == everything


@pytest.mark.world(1, 2)
def test_the_base_is_on_the_device_while_one_of_them_needs_it(here, tiny_model, shared_directory):
    run = built(here, ppo(here, tiny_model("qwen3"), shared_directory, {}, offload=HAS_GONE))
    actor, critic = engines(run)
    sequences = some_sequences(2, run.arch.vocab_size)
    expected = [update(engine, sequences)[-1] for engine in (actor, critic)]
    tensors = [*actor.weights.values(), *critic.weights.values()]
    both = storage_bytes(tensors)
    base = storage_bytes(p for p in actor.parameters.values() if not p.requires_grad)

    freed = actor.offload("parameters")
    assert storage_bytes(tensors) == both - freed > base
    assert torch.equal(outputs(critic, sequences)[-1], expected[1])
    freed += critic.offload("parameters")
    assert critic.offload("parameters") == actor.offload("parameters") == 0
    assert (freed, storage_bytes(tensors)) == (both, 0)
    critic.onload("parameters")
    assert torch.equal(outputs(critic, sequences)[-1], expected[1])
    actor.onload("parameters")
    with device_to_itself([(critic, PARTS), (actor, ())]):
        assert storage_bytes(tensors) == 0
    assert storage_bytes(tensors) == both
    identical([outputs(engine, sequences)[-1] for engine in (actor, critic)], expected)


@pytest.mark.world(2)
def test_a_run_that_is_resumed_ends_as_one_with_two_copies(here, tiny_model, shared_directory):
    """Two steps of PPO with everything offloaded, and weights, moments and counters bit for bit."""
    changes = {"checkpoint": {}, "offload": HAS_GONE, "batch": BATCH | {"mini_batches": 1}}
    config = ppo(here, tiny_model("qwen3"), shared_directory, {"tensor_parallel": 2}, **changes)
    apart = finish(here, without(config))
    finish(here, changed(config, steps=1))
    rows = finish(here, config)
    for mine, theirs in zip(rows, apart, strict=True):
        for name in ("actor/grad_norm", "critic/grad_norm", "critic/loss"):
            assert mine[name] == theirs[name], name
    paths = [c.run_directory / "checkpoints/latest" for c in (config, without(config))]
    assert differing(*paths) == []
    told = (config.run_directory / "flow.txt").read_text()
    assert "critic computes with actor's frozen weights, which are in memory once" in told
    assert "frozen weights" not in (without(config).run_directory / "flow.txt").read_text()


@pytest.mark.world(1)
def test_what_starts_from_other_weights_is_not_shared(here, tiny_model, shared_directory):
    """A step of full training has a critic of its own."""
    config = ppo(here, tiny_model("qwen3"), shared_directory, {}, lora=None, roles={})
    path = save(built(here, config), Progress(1, Position(0, 6)))
    config = ppo(here, path, shared_directory, {})
    with pytest.raises(ConfigError, match=r"holds a critic and a actor.*lora.share_base: false"):
        built(here, config)
    assert built(here, without(config)).roles["critic"].training is not None
