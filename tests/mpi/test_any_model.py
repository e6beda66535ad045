"""Families without a layer table: transformers' model on fully_shard, and vLLM by names.

Updates are those of transformers with torch's AdamW, and after one the live engine has the
log-probs of a new engine that loads the exported files, to the last bit.
"""

from contextlib import closing
from functools import partial
from shutil import copytree

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.generated import generated
from tests.mpi.any_models import BFLOAT16_IN_VLLM, NOT_IN_VLLM, OFTEN, any_model, some_models
from tests.mpi.engines_for_tests import build_engine, gathered, rollout_of, same, some_sequences
from tests.mpi.lora_for_tests import fill, merged, some_adapters
from tests.mpi.parity import TOLERANCE, num_outputs, replica_share, score_loss
from tests.mpi.test_fsdp_updates import BATCHES, CONDITIONED, adamw
from tests.mpi.test_lora_arrival import sync_of
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.hf.stored import stored_views
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.layout.rollout import in_parts
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.trainer import sync

pytestmark = pytest.mark.world(2)
ROLLOUT = RolloutConfig(max_prompt_tokens=32, max_response_tokens=16, kv_cache_gib=0.03)


def one_process(directory):
    """transformers' own model of a directory."""
    with_images = directory.name in WITH_IMAGES
    model = (AutoModelForImageTextToText if with_images else AutoModelForCausalLM).from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    model.get_input_embeddings().padding_idx = None
    return model


def log_probs(model, sequence):
    logits = model(sequence[None], use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, sequence[1:, None])[:, 0]


# transformers itself knows no kimi_k2, which is a deepseek_v3.
@pytest.mark.parametrize("name", some_models("kimi_k2"))
def test_updates_equal_transformers_with_adamw(here, shared_directory, name):
    check_updates(here, shared_directory, name)


@pytest.mark.parametrize("name", OFTEN)
def test_recomputed_updates_on_copies_are_the_same(here, shared_directory, name):
    settings = {"recompute": "full", "fsdp": FsdpConfig(shard_size=1)}
    check_updates(here, shared_directory, name, **settings)


def check_updates(here, shared_directory, name, **settings) -> None:
    size = settings["fsdp"].shard_size if "fsdp" in settings else None
    directory = any_model(here, shared_directory, name)
    layout = TrainLayout(dp=here.world.size, shard_size=size)
    settings |= CONDITIONED
    engine = build_engine(here, directory, layout, engine="fsdp", max_tokens=64, **settings)
    expected = one_process(directory)
    adam, share = adamw(expected.parameters(), **CONDITIONED), replica_share(layout)
    assert sum(isinstance(m, FSDPModule) for m in engine.decoder.modules()) > 2
    for batch in BATCHES:
        adam.zero_grad()
        outputs = sum(log_probs(expected, s).square().sum() for s in batch)
        loss = outputs / num_outputs("language_model", batch)
        loss.backward()
        adam.step()
        metrics = engine.update(batch[share], score_loss("language_model", batch))
        assert metrics["loss"] == pytest.approx(loss.item(), rel=TOLERANCE, abs=TOLERANCE)
    with torch.no_grad():
        wanted = [log_probs(expected, s) for s in BATCHES[0][share]]
    outputs = [o.log_probs for o in engine.infer(BATCHES[0][share])]
    torch.testing.assert_close(outputs, wanted, atol=TOLERANCE, rtol=0)
    # Under the names that transformers saves them by.
    whole = gathered(here, engine.shard_map, engine.weights)
    saved = stored_views(expected, whole.keys())
    same(whole, {n: t.detach() for n, t in saved.items()}, TOLERANCE)


@pytest.mark.parametrize("name", ["ernie4_5_moe", "deepseek_v3"])
def test_a_frozen_model_is_rounded_but_its_buffers(here, shared_directory, name):
    """References are frozen like this; ernie4_5_moe asks for a router in float32."""
    directory, layout = any_model(here, shared_directory, name), TrainLayout(dp=here.world.size)
    engine = build_engine(here, directory, layout, engine="fsdp", dtype="bfloat16", lr=None)
    kinds = {n: getattr(torch, spec.dtype) for n, spec in engine.shard_map.tensors.items()}
    assert set(kinds.values()) == {torch.bfloat16, torch.float32}
    for region in engine.shard_map.held_by(here.world.rank):
        assert engine.weights[region.view.name].dtype == kinds[region.tensor]
    saved = stored_views(one_process(directory), kinds)
    whole = gathered(here, engine.shard_map, engine.weights)
    same(whole, {n: t.detach().to(kinds[n]).float() for n, t in saved.items()}, 0.0)
    (output,) = engine.infer(BATCHES[0][:1])
    assert output.log_probs.isfinite().all()


@pytest.mark.parametrize("tensor_parallel", [1, 2])
@pytest.mark.parametrize("name", some_models(*NOT_IN_VLLM))
def test_vllm_has_what_a_new_engine_loads(
    here, shared_directory, monkeypatch, name, tensor_parallel
):
    check_vllm(here, shared_directory, monkeypatch, name, tensor_parallel)


def check_vllm(
    here, shared_directory, monkeypatch, name, tensor_parallel, lora: LoraConfig | None = None
) -> None:
    """An engine has the log-probs of a new one that loads the trainer's weights, with adapters
    merged."""
    size, rank = here.world.size, here.world.rank
    if tensor_parallel == 1:  # a tensor at a time, as of a large model
        monkeypatch.setattr(sync, "in_parts", partial(in_parts, most_bytes=1))
    directory, layout = any_model(here, shared_directory, name), TrainLayout(dp=size)
    dtype = "bfloat16" if name in BFLOAT16_IN_VLLM else "float32"
    config = ROLLOUT.model_copy(update={"tensor_parallel": tensor_parallel})
    ranks = range(0, size, tensor_parallel)
    replicas = tuple(tuple(range(r, r + tensor_parallel)) for r in ranks)
    engine = build_engine(here, directory, layout, engine="fsdp", lr=1e-2, lora=lora)
    if lora is not None:
        fill(engine, some_adapters(engine))
    with closing(rollout_of(here, directory, replicas, config, dtype, "fsdp")) as rollout:
        weights, batch = sync_of(here, engine, rollout, lora, dtype), BATCHES[0]
        weights.to_generation()
        before = sampled(rollout)
        engine.update(batch[replica_share(layout)], score_loss("language_model", batch))
        metrics = weights.to_generation()
        after = sampled(rollout)
    # Every rank gets the tensors whole, whatever part of them it keeps.
    specs = engine.shard_map.tensors
    missing = size * rollout.shard_map.num_bytes - held_bytes(here, engine, rollout)
    assert metrics["reshard/received_bytes"] == metrics["reshard/minimum_bytes"] == missing
    assert not torch.equal(before, after)
    whole = gathered(here, engine.shard_map, engine.weights)
    exported = shared_directory / f"{name}-{tensor_parallel}-exported"
    if lora is not None:
        exported = exported.with_name(f"{exported.name}-merged")
        adapters = gathered(here, engine.trained_map, engine.weights)
        names = {region.tensor: region.view.name for region in engine.shard_map.regions}
        expected = {n: merged(t, names[n], adapters, lora.scale) for n, t in whole.items()}
        whole = gathered(here, engine.shard_map, engine.merged(engine.shard_map))
        same(whole, expected, 1e-6)
    if rank == 0:
        copytree(directory, exported)
        kinds = {n: getattr(torch, spec.dtype) for n, spec in rollout.shard_map.tensors.items()}
        saved = {n: t.to(kinds[n]) for n, t in whole.items()}
        save_file(saved, exported / "model.safetensors", metadata={"format": "pt"})
    here.control.barrier()
    assert specs.keys() == whole.keys()
    # As any other user of vLLM has it.
    from verl_hpc.rollout import vllm

    original = vllm.LLM
    monkeypatch.setattr(vllm, "LLM", lambda **how: original(**how | {"load_format": "auto"}))
    with closing(rollout_of(here, exported, replicas, config, dtype, "fsdp")) as new:
        new._by_name = None
        new.finish_update()
        assert torch.equal(sampled(new), after)


def held_bytes(here, engine, rollout) -> int:
    """Bytes of all ranks' own shards, in the rollout's type."""
    kinds = rollout.shard_map.tensors
    mine = engine.shard_map.held_by(here.world.rank)
    size = {"float32": 4, "bfloat16": 2}
    held = sum(r.box.num_elements * size[kinds[r.tensor].dtype] for r in mine)
    return sum(here.control.allgather(held))


def sampled(rollout) -> torch.Tensor:
    """Log-probs of what an engine generates."""
    prompts = [s[:20].tolist() for s in some_sequences(4, 256, seed=1)]
    responses = generated(rollout, prompts, Sampling(max_tokens=12), seeds=range(4))
    return torch.tensor([p for r in responses for p in r.log_probs])


def test_attention_that_vllm_has_no_kernels_for_is_refused(here, shared_directory):
    directory = any_model(here, shared_directory, "glm_moe_dsa")
    told = "cannot start .* Sparse Attention is not supported on CPU.*; or choose rollout.engine"
    with pytest.raises(ConfigError, match=told):
        rollout_of(here, directory, ((0,), (1,)), ROLLOUT, "float32", "fsdp")


@pytest.mark.parametrize("error", [RuntimeError, AttributeError, AssertionError])
def test_whatever_a_class_of_models_fails_at_is_told(error):
    from verl_hpc.rollout.vllm_by_name import ByName

    class Model(torch.nn.Linear):
        def load_weights(self, tensors):
            raise error("no place for x")

    loader = ByName(Model(1, 1), torch.float32)
    with pytest.raises(
        ModelError, match=f"Model does .*: {error.__name__}: no place for x; choose"
    ):
        loader.load({"x": torch.zeros(1)})
