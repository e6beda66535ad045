"""The kernels that fully_shard's engine takes, and how it describes them, on
stand-ins for GPUs, and the models that it builds."""

import pytest

from tests.unit.layout.models import architecture
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.engines import factory
from verl_hpc.engines.fsdp import kernels
from verl_hpc.engines.fsdp.build import transformers_config
from verl_hpc.errors import ClusterError
from verl_hpc.layout.families import FAMILIES

BF16 = ModelConfig(path="x")
TORCH = "scaled_dot"


@pytest.fixture
def machine(monkeypatch):
    """`machine(gpu, installed)` pretends to be one."""

    def make(gpu=True, installed=("flash_attn", "liger_kernel")):
        monkeypatch.setattr(kernels.torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(kernels, "_is_installed", lambda name: name in installed)

    return make


FLOAT32 = ModelConfig(path="x", dtype="float32")
LIGER = {"installed": ("liger_kernel",)}
FLASH = {"kernels": "flash_attention"}
BOTH = "not installed: flash_attn and liger_kernel"


@pytest.mark.parametrize(
    ("there", "model", "settings", "fused", "attention"),
    [
        ({}, BF16, {}, " (Liger's norms and SwiGLU)", "FlashAttention 2"),
        (LIGER, BF16, {"compile": "default"}, " (Liger's norms and SwiGLU, torch.compile)", TORCH),
        ({"installed": ()}, BF16, {}, f" (no fused kernels: {BOTH})", TORCH),
        ({}, FLOAT32, {}, " (no fused kernels: model.dtype = float32)", TORCH),
        ({}, BF16, FLASH, "", "FlashAttention 2"),
        (LIGER, BF16, FLASH, " (no fused kernels: not installed: flash_attn)", TORCH),
        (
            *({}, BF16, {"kernels": "torch"}),
            *(" (no fused kernels: parallel.fsdp.kernels = torch)", TORCH),
        ),
        ({"gpu": False}, BF16, {}, " (no fused kernels: no GPU)", TORCH),
    ],
)
def test_what_computes_is_told(machine, there, model, settings, fused, attention):
    machine(**there)
    chosen = kernels.choose_kernels(model, FsdpConfig(**settings), False).describe()
    assert chosen["training layers"] == f"transformers in PyTorch's fully_shard{fused}"
    assert chosen["training attention"].startswith(attention)


def test_a_family_without_a_layer_table_computes_as_transformers_has_it(machine):
    machine()
    olmo = architecture(family="olmo2")
    told = factory.describe_kernels(BF16, ParallelConfig(engine="fsdp"), olmo)
    assert "Liger" not in told["training layers"] and "no layer table" in told["training layers"]
    assert told["training attention"] == "the family's own in transformers"


def test_nothing_is_compiled_without_a_gpu(machine):
    machine(gpu=False)
    with pytest.raises(ClusterError, match="parallel.fsdp.compile = default: this rank has no GPU"):
        kernels.choose_kernels(BF16, FsdpConfig(compile="default"), False)


def test_a_family_that_drops_out_by_default_does_not(monkeypatch):
    """Seed-OSS drops a tenth of attention and of what each block adds."""
    monkeypatch.setitem(FAMILIES, "seed_oss", FAMILIES["qwen2"])
    config = transformers_config(architecture(family="seed_oss", hidden_size=16))
    assert (config.attention_dropout, config.residual_dropout) == (0.0, 0.0)


@pytest.mark.parametrize(
    "family", [name for name, family in FAMILIES.items() if not family.table.expert_rows]
)
def test_no_family_drops_anything(family):
    fields = transformers_config(architecture(family=family, hidden_size=16)).to_dict()
    assert [f for f, v in fields.items() if f.endswith(("dropout", "pdrop")) and v] == []
