"""A rank's vLLM engine beside its trainer, and the transfer of weights between them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import verl_hpc.rollout.vllm as vllm_engine
from tests.dry_gpu import vllm_cuda
from tests.dry_gpu.one_rank import OneRank
from verl_hpc.layout.live import check_parameters
from verl_hpc.rollout.factory import build_rollout
from verl_hpc.rollout.protocol import RolloutEngine
from verl_hpc.testing.tiny import save_tokenizer
from verl_hpc.trainer.sync import PARTS, WeightSync, device_to_itself, offloads_of

_CLASSES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}


def sum_in_one_kernel(monkeypatch: Any) -> None:
    """Triton's kernel of the checksum, which is on every machine with a GPU, as one operation."""
    from verl_hpc.transfer import checksum

    monkeypatch.setattr(checksum, "_has_triton", lambda device: device == "cuda")
    monkeypatch.setattr(checksum, "_in_one_kernel", lambda words: words.sum(dtype=torch.int64))


def build_vllm(
    one: OneRank, directory: Path, monkeypatch: Any, llm: type[vllm_cuda.Llm] = vllm_cuda.Llm
) -> RolloutEngine:
    """Build the rollout engine as a run does, with the trainer's memory away.

    Args:
        one: the rank.
        directory: for what is read of the model.
        monkeypatch: the fixture.
        llm: in the place of `vllm.LLM`.
    """
    monkeypatch.setattr(vllm_engine, "LLM", llm)
    sum_in_one_kernel(monkeypatch)
    save_tokenizer(directory)
    fields = {"architectures": [_CLASSES[one.fields["model_type"]]], **one.fields}
    (directory / "config.json").write_text(json.dumps(fields))
    config, path = one.run.rollout, str(directory)
    actor = SimpleNamespace(training=one.engine, settings=one.settings)
    with device_to_itself(offloads_of([actor])):
        engine = build_rollout(
            one.world, one.arch, path, path, one.layouts.replicas, config, "bfloat16"
        )
        assert engine is not None
        check_parameters(engine.shard_map, one.gpu.rank, engine.weights, "vLLM")
        engine.sleep()
    return engine


def weight_sync(one: OneRank, rollout: RolloutEngine) -> WeightSync:
    """The transfer of the run, with checksums."""
    session = SimpleNamespace(
        world=one.world,
        device=torch.device("cuda"),
        control=SimpleNamespace(allgather=lambda mine: [mine] * one.gpu.size),
    )
    actor = SimpleNamespace(
        training=one.engine,
        settings=one.settings,
        shard_map=one.engine.shard_map,
        trained_map=one.engine.trained_map,
        arch=one.engine.arch,
    )
    held = SimpleNamespace(engine=rollout, shard_map=rollout.shard_map)
    offloads = [(one.engine, PARTS)]
    return WeightSync(session, actor, held, offloads, torch.bfloat16, checksums=True)
