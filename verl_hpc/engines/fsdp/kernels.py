"""Optional kernels, FlashAttention and Liger, detected at run time."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.model import ModelConfig
from verl_hpc.errors import ClusterError

_PACKAGES = ("flash_attn", "liger_kernel")


@dataclass(frozen=True)
class Kernels:
    """Kernels that compute a model besides PyTorch's."""

    flash: bool
    liger: bool
    why: str = ""
    """Reason why neither `flash` nor `liger` is used."""
    compiled: bool = False
    by_name: bool = False
    """Whether the model is transformers' own throughout, as where its family has no layer table."""

    def describe(self) -> dict[str, str]:
        """Describe the kernels for the facts of a run."""
        layers = "transformers in PyTorch's fully_shard"
        extra = [*["Liger's norms and SwiGLU"] * self.liger, *["torch.compile"] * self.compiled]
        if self.why:
            extra.append(f"no fused kernels: {self.why}")
        attention = "scaled_dot_product_attention"
        if self.flash:
            attention = "FlashAttention 2 (flash_attn_varlen_func)"
        elif self.by_name:
            attention = "the family's own in transformers"
        return {
            "training layers": f"{layers} ({', '.join(extra)})" if extra else layers,
            "training attention": attention,
        }


def choose_kernels(model: ModelConfig, settings: FsdpConfig, by_name: bool) -> Kernels:
    """Choose the installed kernels that support the model's element type.

    Args:
        model: its element type.
        settings: which kernels are wanted.
        by_name: its family has no layer table, and computes as transformers has it.

    Raises:
        ClusterError: layers are to be compiled, and this rank has no GPU.
    """
    if settings.compile != "none" and not torch.cuda.is_available():
        raise ClusterError(
            f"parallel.fsdp.compile = {settings.compile}: this rank has no GPU, and torch.compile "
            "is switched off on CPU ranks, where it would wait for a C++ compiler; leave it out"
        )
    why = ""
    if by_name:
        why = "the family has no layer table"
    elif settings.kernels == "torch":
        why = "parallel.fsdp.kernels = torch"
    elif not torch.cuda.is_available():
        why = "no GPU"
    elif model.dtype == "float32":
        why = "model.dtype = float32"
    wanted = _PACKAGES if settings.kernels == "auto" else _PACKAGES[:1]
    installed = [name for name in wanted if not why and _is_installed(name)]
    if not why and not installed:
        why = f"not installed: {' and '.join(wanted)}"
    flash, liger = (name in installed for name in _PACKAGES)
    return Kernels(flash, liger, why, settings.compile != "none", by_name)


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def apply_liger(model: PreTrainedModel) -> None:
    """Let Liger compute norms and SwiGLU of this model only.

    Liger's own function also changes classes in the family's module, which a rollout engine of this
    process may use; those changes are undone.
    """
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    module = importlib.import_module(type(model).__module__)
    with patch.dict(vars(module)):
        _apply_liger_kernel_to_instance(
            model,
            rope=False,  # a function of the module, not of the model
            cross_entropy=False,
            fused_linear_cross_entropy=False,
            rms_norm=True,
            swiglu=True,
        )
