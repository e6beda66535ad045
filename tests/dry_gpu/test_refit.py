"""Weights on their way from Megatron-core's memory into that of vLLM's CUDA model."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.dry_gpu.one_rank import one_rank
from tests.dry_gpu.rollout_rank import build_vllm, weight_sync
from tests.dry_gpu.test_training import LARGE, TP2, TP8PP4, within
from tests.dry_gpu.vllm_cuda import LlmOfSecondRunner
from verl_hpc.rollout.protocol import RolloutEngine

WAITS = {"item: sums.compare": 1, "synchronize: execute.run": 1}
"""The host waits for the device so often in a transfer of any size, besides offloading."""


def refit(one, directory, monkeypatch, **options) -> RolloutEngine:
    """Two refits, of which the second finds all memory bound. CUDA graphs go by the addresses of
    weights and buffers, which stay; what the prefix cache has of earlier weights is forgotten."""
    rollout = build_vllm(one, directory, monkeypatch, **options)
    assert not [name for name in sys.modules if name.startswith("verl_hpc.rollout.vllm_cpu")]
    sync = weight_sync(one, rollout)
    model = rollout._llm.model
    addresses = []
    for _ in range(2):
        one.gpu.clear()
        rollout._llm.calls.clear()
        sync.to_generation()
        again = ["sleep"] if addresses else []
        assert rollout._llm.calls == [*again, "wake weights", "wake kv_cache", "reset"]
        addresses.append([t.data_ptr() for t in (*model.parameters(), *model.buffers())])
        waits = Counter(one.gpu.waits)
        del waits["synchronize: offload.release"]
        assert waits == WAITS, one.gpu.waits
    assert addresses[0] == addresses[1]
    planned = next(p for p in one.phases(counts_peers=True) if p.name == "generate")
    weights = sum(t.untyped_storage().nbytes() for t in rollout.weights.values())
    both = next(p for p in one.phases() if p.name == "reshard").device
    within(weights, both["rollout.weights"], 0.01)
    terms = ("actor.weights", "rollout.weights", "actor.quantised", "buckets")
    most = sum(both.get(term, 0) for term in terms)
    within(one.gpu.memory.peak, most, 0.05, "most in a refit")
    assert one.gpu.memory.live - weights < planned.device["buckets"] + (200 << 20)
    return rollout


def test_dense_model(gpu, tmp_path, monkeypatch):
    offload = {"gradients": True, "optimizer": True, "parameters": True}
    one = one_rank(gpu, "Qwen3-8B", 5, 16, TP2, offload=offload)
    refit(one, tmp_path, monkeypatch)


@pytest.mark.slow
def test_second_model_runner(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "0")
    offload = {"gradients": True, "optimizer": True, "parameters": True}
    one = one_rank(gpu, "Qwen3-8B", 5, 16, TP2, offload=offload)
    rollout = refit(one, tmp_path, monkeypatch, llm=LlmOfSecondRunner)
    with pytest.raises(NotImplementedError, match="_C.rotary_embedding"):  # of the first layer
        rollout._llm.runner.profile_run()


def test_stages_to_tensor_parallel_engines(gpu, tmp_path, monkeypatch):
    one = one_rank(gpu, LARGE, 127, 128, TP8PP4, layers=8, rollout={"tensor_parallel": 8})
    refit(one, tmp_path, monkeypatch)


def test_adapters(gpu, tmp_path, monkeypatch):
    adapters(gpu, tmp_path, monkeypatch, 0.01)


@pytest.mark.slow
def test_adapters_into_an_fp8_engine(gpu, tmp_path, monkeypatch):
    rollout = {"quantization": "fp8"}
    correction = {"algorithm": {"advantage": {"name": "gae"}, "correction": {}}}
    # The first refit, in which the base arrives by layers, is in the plan as well.
    adapters(gpu, tmp_path, monkeypatch, 0.10, rollout=rollout, **correction)


def adapters(gpu, tmp_path, monkeypatch, share, **changes) -> None:
    """They travel alone from the second refit on, and all that they take is where `plan` says."""
    offload = {"gradients": True, "optimizer": True, "parameters": True}
    one = one_rank(gpu, "Qwen3-8B", 5, 16, TP2, offload=offload, lora={"rank": 16}, **changes)
    rollout = build_vllm(one, tmp_path, monkeypatch)
    live, locked = one.gpu.memory.live, one.gpu.page_locked
    sync = weight_sync(one, rollout)
    phases = {p.name: p for p in one.phases(counts_peers=True)}
    planned, host = phases["reshard"].device, phases["generate"].host
    received = one.gpu.memory.live - live
    within(received, planned["rollout.adapters"], 0, "adapters")
    within(one.gpu.page_locked - locked, host["rollout.base"], 0, "base")
    for _ in range(3):
        one.gpu.clear()
        sync.to_generation()
        waits = Counter(one.gpu.waits)
        del waits["synchronize: offload.release"]
    assert waits == {**WAITS, "synchronize: arrival.merge": 1}, one.gpu.waits
    # Training is away, and so are the buckets in which the base travelled.
    weights = sum(t.untyped_storage().nbytes() for t in rollout.weights.values())
    assert one.gpu.memory.live - weights - received < (32 << 20), one.gpu.memory.live
    terms = [n for n in planned if n.startswith(("actor.", "rollout.")) and n != "rollout.asleep"]
    within(one.gpu.memory.peak, sum(planned[n] for n in terms), share, "most in a refit")


@pytest.mark.slow
def test_fully_sharded_to_tensor_parallel_engines(gpu, tmp_path, monkeypatch):
    one = one_rank(gpu, "Qwen3-8B", 5, 8, {"engine": "fsdp"}, rollout={"tensor_parallel": 4})
    refit(one, tmp_path, monkeypatch)


@pytest.mark.slow
def test_fp8_engine(gpu, tmp_path, monkeypatch):
    rollout = {"quantization": "fp8", "kv_cache_dtype": "fp8"}
    algorithm = {"advantage": {"name": "gae"}, "correction": {}}
    one = one_rank(gpu, "Qwen3-8B", 0, 4, TP2, rollout=rollout, algorithm=algorithm)
    refit(one, tmp_path, monkeypatch)
