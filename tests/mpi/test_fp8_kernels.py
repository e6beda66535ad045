"""vLLM's kernels of weights in FP8: those that a run asks for leave what is written into as it is,
others are refused by name."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_BLOCK_KERNELS
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.platforms import PlatformEnum

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import rollout_of
from tests.unit.layout.models import moe
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError
from verl_hpc.rollout import vllm_fp8
from verl_hpc.transfer.fp8 import largest_of_blocks, quantise, scales_of

pytestmark = pytest.mark.world(1)

FP8 = RolloutConfig(quantization="fp8")
KERNELS = _POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CUDA]
LEAVE = {
    "B12xFp8BlockScaledMMKernel",
    "BlockWiseTorchFP8ScaledMMLinearKernel",
    "CutlassFp8BlockScaledMMKernel",
    "TritonFp8BlockScaledMMKernel",
}


def model_with(**method) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.quant_method = SimpleNamespace(**method)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), layer)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.__name__ in LEAVE])
def test_chosen_kernels_leave_weights_where_they_are(kernel):
    weight = torch.randn(256, 384).bfloat16()
    scales = scales_of(largest_of_blocks(weight, (0, 0)))
    layer = torch.nn.Module()
    values = quantise(weight, scales, (0, 0))
    layer.weight = torch.nn.Parameter(values.clone(), requires_grad=False)
    layer.weight_scale_inv = torch.nn.Parameter(scales.clone(), requires_grad=False)
    places = layer.weight.data_ptr(), layer.weight_scale_inv.data_ptr()
    made = kernel.__new__(kernel)
    made.process_weights_after_loading(layer)
    assert places == (layer.weight.data_ptr(), layer.weight_scale_inv.data_ptr())
    assert layer.weight.view(torch.uint8).equal(values.view(torch.uint8))
    assert layer.weight_scale_inv.equal(scales)
    vllm_fp8.check_kernels(model_with(fp8_linear=made))


def test_every_kernel_of_vllm_is_known():
    """Another version's kernels are to be read before they are trusted."""
    assert {k.__name__ for k in KERNELS} - LEAVE == {
        "DeepGemmFp8BlockScaledMMKernel",
        "FlashInferFp8DeepGEMMDynamicBlockScaledKernel",
        "HummingFP8ScaledMMLinearKernel",
        "MarlinFP8ScaledMMLinearKernel",
    }


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.__name__ not in LEAVE])
def test_kernels_that_pack_are_refused(kernel):
    with pytest.raises(ConfigError, match=f"{kernel.__name__}.*engine_options.linear_backend"):
        vllm_fp8.check_kernels(model_with(fp8_linear=kernel.__new__(kernel)))


@pytest.mark.parametrize("backend", [Fp8MoeBackend.DEEPGEMM, Fp8MoeBackend.MARLIN])
def test_experts_that_are_packed_are_refused(backend):
    with pytest.raises(ConfigError, match=f"{backend.value}.*ignored_layers"):
        vllm_fp8.check_kernels(model_with(fp8_backend=backend))
    vllm_fp8.check_kernels(model_with(fp8_backend=Fp8MoeBackend.TRITON))


def test_gpus_are_asked_for_kernels_that_do_not_pack():
    found = vllm_fp8.options(FP8, moe("qwen3_moe", num_layers=1), "cuda")
    assert found["linear_backend"] in ("cutlass", "triton")
    assert found["moe_backend"] == "triton"


def test_experts_on_cores_are_refused():
    with pytest.raises(ConfigError, match="experts in FP8 need AMX on CPU ranks"):
        vllm_fp8.options(FP8, moe("mixtral", num_layers=1), "cpu")


def test_a_cache_in_fp8_needs_avx512(here, tiny_model):
    directory = tiny_model("llama", False, **VLLM_HEADS | {"hidden_size": 256})
    config = RolloutConfig(
        kv_cache_dtype="fp8", max_prompt_tokens=32, max_response_tokens=16, kv_cache_gib=0.03
    )
    message = "FP8 KV cache on CPU requires .*AVX-512"
    able = torch.cpu._is_avx512_supported()
    with nullcontext() if able else pytest.raises(ConfigError, match=message):
        rollout_of(here, directory, ((0,),), config, "bfloat16").close()
