"""A mixture of experts: its training, and its way to vLLM's experts."""

from __future__ import annotations

import pytest
import torch

from tests.dry_gpu import twins
from tests.dry_gpu.one_rank import one_rank
from tests.dry_gpu.test_refit import refit
from tests.dry_gpu.test_training import FULL, check_memory, step

MIXTURE = "Qwen3-30B-A3B"
TP2EP4 = {"tensor_parallel": 2, "expert_parallel": 4, "sequence_parallel": True}

TP8EP32 = {"tensor_parallel": 8, "expert_parallel": 32, "sequence_parallel": True}

OF_A_LAYER = {
    "event.synchronize: token_dispatcher._maybe_dtoh_and_synchronize in passes._forward": 1
}
"""The host waits for the device so often in a layer of experts, as it must know how many tokens go
where."""
OF_AN_UPDATE = {"tolist: routers.end": 1}
"""And once an update, for the metric of how evenly experts are chosen."""


def route_evenly(monkeypatch) -> None:
    """Let every router choose neighbouring experts, token by token in turn. How many tokens an
    expert gets decides shapes, and a router's scores are not known here."""
    from megatron.core.transformer.moe import router

    choose = router.topk_routing_with_score_function

    def evenly(logits, topk, *args, **kwargs):
        scores, chosen = choose(logits, topk, *args, **kwargs)
        tokens, experts = chosen.shape
        places = torch.arange(tokens)[:, None] * topk + torch.arange(topk)
        table = torch.zeros(tokens, experts, dtype=torch.bool)
        twins.know(chosen, table.scatter_(1, places % experts, True))
        return scores, chosen

    monkeypatch.setattr(router, "topk_routing_with_score_function", evenly)


def trains(one, micro_batches=2, layers=2) -> None:
    """Two updates and a forward pass, with the waits of experts and no others."""
    forward = {name: n * micro_batches * layers for name, n in OF_A_LAYER.items()}
    step(one, FULL, forward, OF_AN_UPDATE)
    check_memory(one)


def test_training(gpu, monkeypatch):
    route_evenly(monkeypatch)
    trains(one_rank(gpu, MIXTURE, 5, 16, TP2EP4))


@pytest.mark.slow
def test_experts_over_tensor_parallel_ranks(gpu, monkeypatch):
    route_evenly(monkeypatch)
    trains(one_rank(gpu, MIXTURE, 5, 16, {**TP2EP4, "expert_tensor_parallel": 2}))


@pytest.mark.slow
def test_fp8(gpu, monkeypatch):
    route_evenly(monkeypatch)
    trains(one_rank(gpu, MIXTURE, 5, 16, TP2EP4, model={"fp8": {"recipe": "blockwise"}}))


@pytest.mark.parametrize("file", ["DeepSeek-V3", "GLM-4.5-Air"])
def test_shared_experts_behind_a_dense_layer(gpu, monkeypatch, file):
    """With latent attention, and with rotary embeddings of a part of each head."""
    route_evenly(monkeypatch)
    one = one_rank(gpu, file, 5, 64, TP8EP32, fields={"first_k_dense_replace": 1})
    biases = [w for name, w in one.engine.weights.items() if name.endswith("expert_bias")]
    assert [bias.dtype for bias in biases] == [torch.float32]
    trains(one, layers=1)


@pytest.mark.slow
def test_a_shared_expert_with_a_gate(gpu, monkeypatch):
    route_evenly(monkeypatch)
    gated = {"model_type": "qwen2_moe", "head_dim": 64, "shared_expert_intermediate_size": 768}
    trains(one_rank(gpu, MIXTURE, 5, 16, TP2EP4, fields=gated))


def test_refit(gpu, tmp_path, monkeypatch):
    one = one_rank(gpu, MIXTURE, 5, 16, TP2EP4, rollout={"tensor_parallel": 4})
    refit(one, tmp_path, monkeypatch)


@pytest.mark.slow
def test_refit_into_engines_that_share_experts(gpu, tmp_path, monkeypatch):
    rollout = {"tensor_parallel": 4, "expert_parallel": True}
    refit(one_rank(gpu, MIXTURE, 5, 16, TP2EP4, rollout=rollout), tmp_path, monkeypatch)


def test_refit_of_a_router_in_float32(gpu, tmp_path, monkeypatch):
    one = one_rank(gpu, "GLM-4.5-Air", 5, 16, TP2EP4, rollout={"tensor_parallel": 4})
    refit(one, tmp_path, monkeypatch)
