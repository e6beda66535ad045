"""Adapters with fully_shard: log-probs, gradients and updates of A and B are those of PEFT's own
model on transformers, on any number of ranks, and merged weights are what vLLM has."""

from contextlib import closing

import peft
import pytest
import torch

from tests.mpi.any_models import MODELS, any_model
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import build_engine, gathered, held, rollout_of, same
from tests.mpi.lora_for_tests import fill, merged, some_adapters
from tests.mpi.parity import TOLERANCE, num_outputs, replica_share, score_loss
from tests.mpi.recipe_runs import SAME_DRAWS, assert_same, configure, finish, write_reward
from tests.mpi.test_any_model import ROLLOUT, check_vllm, log_probs, one_process
from tests.mpi.test_fsdp_updates import BATCHES, CONDITIONED, adamw, gradients_at_step
from tests.mpi.test_lora_arrival import sync_of
from verl_hpc.checkpoint.peft import write_adapter
from verl_hpc.checkpoint.run_state import AdapterState
from verl_hpc.config.lora import LoraConfig
from verl_hpc.errors import ModelError
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.not_mapped import WITH_IMAGES

pytestmark = pytest.mark.world(1, 2)
RANK, ALPHA = 3, 6.0
OFTEN = {
    "gemma3_text": "all-linear",
    "qwen3_next": ["q_proj", "in_proj_qkvz", "shared_expert_gate"],
}
"""Models of `make test`, with what they adapt: layers of all kinds, beside fused experts."""
WITHOUT_LINEAR = {"gpt2"}
SLOW = pytest.mark.slow(reason="a further family; run with --slow")
CASES = [
    *(pytest.param(name, targets, id=name) for name, targets in OFTEN.items()),
    *(
        pytest.param(name, "all-linear", id=f"{name}-all", marks=SLOW)
        for name in ("qwen3", *MODELS)
        if name not in {"gemma3_text", "kimi_k2"} | WITHOUT_LINEAR
    ),
]


def by_peft(directory, targets, adapters):
    """PEFT's model of a directory, and its A and B by their names in PEFT's files."""
    model = one_process(directory)
    if targets == "all-linear" and (directory.name in WITH_IMAGES or is_mixed(model)):
        # To PEFT it is towers, routers and experts, too; and what it refuses itself.
        targets = sorted({name.split(".lora_")[0] for name in adapters})
    chosen = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets)
    model = peft.get_peft_model(model, chosen)
    prefix = "base_model.model."
    named = {
        name.removeprefix(prefix).replace(".default", ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert named.keys() == adapters.keys()
    for name, parameter in named.items():
        parameter.data.copy_(adapters[name])
    return model, named


def is_mixed(model) -> bool:
    """Whether there are experts, or Mamba's layers."""
    names = [name for name, _ in model.named_parameters()]
    return any(part in name for name in names for part in ("experts", "A_log"))


@pytest.mark.parametrize("name, targets", CASES)
def test_updates_of_adapters_equal_pefts(here, shared_directory, tiny_model, name, targets):
    directory = tiny_model(name) if name == "qwen3" else any_model(here, shared_directory, name)
    layout = TrainLayout(dp=here.world.size)
    lora = LoraConfig(rank=RANK, alpha=ALPHA, target_modules=targets)
    again = "full" if name == "gemma3_text" else "none"
    how = {"engine": "fsdp", "max_tokens": 64, "recompute": again, **CONDITIONED}
    engine = build_engine(here, directory, layout, lora=lora, **how)
    adapters = some_adapters(engine)
    fill(engine, adapters)
    base = {n: w.clone() for n, w in engine.weights.items() if ".lora_" not in n}
    expected, named = by_peft(directory, targets, adapters)
    adam, share = adamw(named.values(), **CONDITIONED), replica_share(layout)
    seen = gradients_at_step(engine)
    for batch in BATCHES:
        adam.zero_grad()
        loss = sum(log_probs(expected, s).square().sum() for s in batch)
        loss = loss / num_outputs("language_model", batch)
        loss.backward()
        gradients = {n: p.grad.clone() for n, p in named.items() if p.grad is not None}
        metrics = engine.update(batch[share], score_loss("language_model", batch))
        adam.step()
        assert metrics["loss"] == pytest.approx(loss.item(), rel=TOLERANCE, abs=TOLERANCE)
        for region in engine.trained_map.held_by(here.world.rank):
            if region.tensor in gradients:
                mine = gradients[region.tensor][region.box.slices]
                torch.testing.assert_close(seen[region.view.name], mine, atol=TOLERANCE, rtol=0)
    with torch.no_grad():
        wanted = [log_probs(expected, s) for s in BATCHES[0][share]]
        with expected.disable_adapter():
            plain = [log_probs(expected, s) for s in BATCHES[0][share]]
    outputs = [o.log_probs for o in engine.infer(BATCHES[0][share])]
    torch.testing.assert_close(outputs, wanted, atol=TOLERANCE, rtol=0)
    with engine.without_adapters():
        outputs = [o.log_probs for o in engine.infer(BATCHES[0][share])]
    torch.testing.assert_close(outputs, plain, atol=TOLERANCE, rtol=0)
    moved = max((a - b).abs().max().item() for a, b in zip(wanted, plain, strict=True))
    assert moved > 0.01  # or nothing was tested
    whole = gathered(here, engine.trained_map, engine.weights)
    same(whole, {n: p.detach() for n, p in named.items()}, TOLERANCE)
    if here.world.rank == 0:
        out = shared_directory / f"{name}-{here.world.size}-{type(targets).__name__}"
        out.mkdir()
        told = AdapterState(base=str(directory), rank=RANK, alpha=ALPHA)
        write_adapter(out, whole, told, None, engine.arch.is_mapped)
        loaded = peft.PeftModel.from_pretrained(one_process(directory), out)
        with torch.no_grad():
            outputs = [log_probs(loaded, s) for s in BATCHES[0][share]]
        torch.testing.assert_close(outputs, wanted, atol=TOLERANCE, rtol=0)
    same({n: engine.weights[n] for n in base}, base)
    assert engine.optimizer.mains.keys() == engine.weights.keys() - base.keys()


@pytest.mark.world(2)
@pytest.mark.parametrize(
    "name, tensor_parallel",
    [("gemma3_text", 1), *(pytest.param(n, 2, marks=SLOW) for n in ("qwen3_next", "qwen2_5_vl"))],
)
def test_vllm_has_what_a_new_engine_loads_of_merged_weights(
    here, shared_directory, monkeypatch, name, tensor_parallel
):
    lora = LoraConfig(rank=RANK, alpha=ALPHA)
    check_vllm(here, shared_directory, monkeypatch, name, tensor_parallel, lora)


@pytest.mark.world(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_with_a_layer_table_gets_merged_weights(here, tiny_model, dtype):
    directory, replicas = tiny_model("qwen3", **VLLM_HEADS), ((0, 1),)
    # With bfloat16 on copies, of one shard each.
    size = 1 if dtype == "bfloat16" else None
    lora, layout = LoraConfig(rank=RANK, alpha=ALPHA), TrainLayout(dp=2, shard_size=size)
    engine = build_engine(here, directory, layout, engine="fsdp", lora=lora)
    fill(engine, some_adapters(engine))
    config = ROLLOUT.model_copy(update={"tensor_parallel": 2})
    whole = gathered(here, engine.shard_map, engine.weights)
    adapters = gathered(here, engine.trained_map, engine.weights)
    with closing(rollout_of(here, directory, replicas, config, dtype, "fsdp")) as rollout:
        sync_of(here, engine, rollout, lora, dtype).to_generation()
        for region in rollout.shard_map.held_by(here.world.rank):
            name = region.tensor
            expected = merged(whole[name], name, adapters, lora.scale)[region.box.slices]
            arrived = held(rollout.weights, region)
            assert arrived.dtype == getattr(torch, dtype)
            near = {"float32": dict(atol=1e-6, rtol=0), "bfloat16": dict(atol=1e-6, rtol=2**-8)}
            torch.testing.assert_close(arrived.float(), expected, **near[dtype])


@pytest.mark.world(2)
def test_a_base_stays_in_its_type_and_a_new_head_is_trained_besides(here, shared_directory):
    directory, layout = any_model(here, shared_directory, "gemma3_text"), TrainLayout(dp=2)
    lora = LoraConfig(rank=RANK, alpha=ALPHA, target_modules=["v_proj"])
    how = {"dtype": "bfloat16", "head": "value", "recompute": "full", "lora": lora}
    engine = build_engine(here, directory, layout, engine="fsdp", **how)
    fill(engine, some_adapters(engine))
    before = {name: weight.clone() for name, weight in engine.weights.items()}
    for _ in range(2):  # a head of zero gives what is before it no gradient
        loss = lambda _, out: (sum((o.values - 1).square().sum() for o in out), {})  # noqa: E731
        assert engine.update(BATCHES[0][replica_share(layout)], loss)["grad_norm"] > 0
    changed = {n for n, w in engine.weights.items() if not torch.equal(w, before[n])}
    assert changed == {r.view.name for r in engine.trained_map.held_by(here.world.rank)}
    parts = {name.rsplit(".", 2)[-2] for name in engine.trained_map.tensors}
    assert parts == {"lora_A", "lora_B", "value_head"}
    kinds = {n: torch.float32 if n in changed else torch.bfloat16 for n in engine.weights}
    assert {name: weight.dtype for name, weight in engine.weights.items()} == kinds


@pytest.mark.world(2)
@pytest.mark.parametrize(
    "name, target, told",
    [
        ("qwen3_next", "gate_proj", "gate_proj is no linear layer .* nor have experts"),
        ("qwen3_next", "gate", "gate is no linear layer .*, shared_expert_gate, q_proj"),
        ("mamba2", "out_proj", "out_proj is no linear layer of a mamba2"),
        ("gpt2", None, "transformers' gpt2 has no linear layers"),
    ],
)
def test_layers_without_adapters_are_refused(here, shared_directory, name, target, told):
    directory = any_model(here, shared_directory, name)
    lora = LoraConfig(target_modules=[target] if target else "all-linear")
    with pytest.raises(ModelError, match=told):
        build_engine(here, directory, TrainLayout(dp=here.world.size), engine="fsdp", lora=lora)


@pytest.mark.world(2)
@pytest.mark.slow(reason="whole runs; run with --slow")
def test_grpo_goes_on_on_another_number_of_ranks(here, shared_directory):
    """Two steps on two ranks, and with a checkpoint between them of which one rank trains on while
    the other generates; the reference is the model without adapters."""

    def run(label, steps, **more):
        config = configure(
            label,
            any_model(here, shared_directory, "gemma3_text"),
            shared_directory,
            recipe="rl",
            steps=steps,
            optimizer={"lr": 1e-2},
            lora={"rank": 4, "alpha": 8.0},
            parallel={"engine": "fsdp"},
            algorithm={"kl": {"placement": "loss", "coefficient": 0.1}},
            reward={"function": write_reward(here, shared_directory)},
            rollout=SAME_DRAWS | {"engine": "vllm", "kv_cache_gib": 0.05},
            checkpoint={"resume": "auto", "every": 1},
            **more,
        )
        return finish(here, config)

    alone = run("alone", 2)
    assert all(row["training/rollout_log_probs_diff_max"] < 1e-4 for row in alone)
    assert alone[1]["actor/kl_loss"] > alone[0]["actor/kl_loss"] > 0  # of a second mini-batch on
    run("again", 1)
    again = run("again", 2, placement={"train": "0", "rollout": "1"})
    assert_same(again, alone, ("actor/loss", "actor/grad_norm", "actor/kl_loss"), rel=1e-4)
