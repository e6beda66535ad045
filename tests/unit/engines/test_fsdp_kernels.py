"""Which kernels fully_shard's engine takes, and what is said of them; GPUs are stand-ins."""

import pytest

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ModelConfig
from verl_hpc.engines.fsdp import kernels
from verl_hpc.errors import ClusterError

BF16 = ModelConfig(path="x")
PLAIN = "transformers in PyTorch's fully_shard"


@pytest.fixture
def machine(monkeypatch):
    """`machine(gpu, installed)` pretends to be one."""

    def make(gpu=True, installed=("flash_attn", "liger_kernel")):
        monkeypatch.setattr(kernels.torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(kernels, "_is_installed", lambda name: name in installed)

    return make


@pytest.mark.parametrize(
    ("there", "model", "settings", "layers", "attention"),
    [
        ({}, BF16, {}, f"{PLAIN} (Liger's norms and SwiGLU)", "FlashAttention 2"),
        (
            {"installed": ("liger_kernel",)},
            BF16,
            {"compile": "default"},
            f"{PLAIN} (Liger's norms and SwiGLU, torch.compile)",
            "scaled_dot",
        ),
        (
            {"installed": ()},
            BF16,
            {},
            f"{PLAIN} (no fused kernels: not installed: flash_attn and liger_kernel)",
            "scaled_dot",
        ),
        (
            {},
            ModelConfig(path="x", dtype="float32"),
            {},
            f"{PLAIN} (no fused kernels: model.dtype = float32)",
            "scaled_dot",
        ),
        ({}, BF16, {"kernels": "flash_attention"}, PLAIN, "FlashAttention 2"),
        (
            {"installed": ("liger_kernel",)},
            BF16,
            {"kernels": "flash_attention"},
            f"{PLAIN} (no fused kernels: not installed: flash_attn)",
            "scaled_dot",
        ),
        (
            {},
            BF16,
            {"kernels": "torch"},
            f"{PLAIN} (no fused kernels: parallel.fsdp.kernels = torch)",
            "scaled_dot",
        ),
        ({"gpu": False}, BF16, {}, f"{PLAIN} (no fused kernels: no GPU)", "scaled_dot"),
    ],
)
def test_what_computes_is_told(machine, there, model, settings, layers, attention):
    machine(**there)
    found = kernels.choose_kernels(model, FsdpConfig(**settings)).describe()
    assert found["training layers"] == layers
    assert found["training attention"].startswith(attention)


def test_nothing_is_compiled_without_a_gpu(machine):
    machine(gpu=False)
    with pytest.raises(ClusterError, match="parallel.fsdp.compile = default: this rank has no GPU"):
        kernels.choose_kernels(BF16, FsdpConfig(compile="default"))
