"""What ended a request of vLLM's, as the reason that its response ended."""

from types import SimpleNamespace

import pytest

from verl_hpc.errors import TrainingError


def request(reason, finished=True):
    token = SimpleNamespace(logprob=-1.0)
    output = SimpleNamespace(token_ids=[5], logprobs=[{5: token}], finish_reason=reason)
    return SimpleNamespace(outputs=[output], finished=finished)


def test_only_what_ended_by_itself_is_complete():
    from verl_hpc.rollout.vllm_requests import response_of

    assert response_of(request("stop")).finish_reason == "stop"
    assert response_of(request("length")).finish_reason == "length"
    assert response_of(request(None, finished=False)).finish_reason == "unfinished"
    for reason in ("abort", "error", "repetition"):
        with pytest.raises(TrainingError, match=rf"vLLM ended a response .* \({reason}\)"):
            response_of(request(reason))


def test_heads_that_are_refused_are_those_that_vllm_refuses():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    from verl_hpc.layout.vllm import CPU_HEAD_SIZES

    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_SIZES
