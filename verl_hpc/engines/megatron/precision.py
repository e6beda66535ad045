"""Optional kernels, Transformer Engine and NVIDIA Apex, detected at run time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

import torch

from verl_hpc.config.model import Fp8Config, ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.errors import ClusterError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import Backend

_HOW_TO_GET_TE = (
    "install it against this CUDA with `pip install --no-build-isolation "
    "'transformer_engine[pytorch]'`, or use the project's container (containers/)"
)

_NEEDED = {
    "_dummy_wgrads",
    "_fp8_workspaces",
    "fused_permute_with_probs",
    "fused_sort_chunks_by_index_with_probs",
    "fused_unpermute",
}
"""Names of Transformer Engine that `drop_placeholders`, `drop_fp8_copies` and `moe_permute_fusion`
go by, the last as Megatron-core has imported them."""


def has_transformer_engine() -> bool:
    """Whether Transformer Engine's PyTorch part imports here, and Megatron-core can use it."""
    return why_no_transformer_engine() is None


def why_no_transformer_engine() -> str | None:
    """Return why Transformer Engine's layers cannot be used here; None if they can."""
    if not torch.cuda.is_available():
        return "no GPU"
    if importlib.util.find_spec("transformer_engine") is None:
        return "Transformer Engine is not installed"
    try:
        import transformer_engine.pytorch  # noqa: F401
    except Exception as error:
        # The bare meta package raises RuntimeError; a build for another CUDA, OSError; one for
        # another PyTorch, anything.
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"Transformer Engine cannot be imported: {first}"
    from megatron.core.extensions import transformer_engine as extension

    # It is written against names of Transformer Engine that come and go between versions.
    if not extension.HAVE_TE:
        return "Megatron-core cannot use this version of Transformer Engine"
    from transformer_engine.pytorch.module import base

    there = {name for name, value in vars(extension).items() if value is not None} | {*vars(base)}
    there.update(base.TransformerEngineBaseModule.__init__.__code__.co_names)
    missing = ", ".join(sorted(_NEEDED - there))
    return f"this version of Transformer Engine has no {missing}" if missing else None


def describe_kernels(model: ModelConfig, arch: Architecture | None = None) -> dict[str, str]:
    """Name the kernels of layers and attention in training, and why fused ones are not used."""
    if choose_backend(model, arch) == "transformer_engine":
        chosen = "chosen by Transformer Engine; NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 shows which"
        return {"training layers": "Transformer Engine", "training attention": chosen}
    sinks = "sinks in attention" if arch is not None and arch.sinks else ""
    why = why_no_transformer_engine() or sinks or f"model.dtype = {model.dtype}"
    return {
        "training layers": f"PyTorch ({why})",
        "training attention": "scaled_dot_product_attention",
    }


def has_apex_gradient_fusion() -> bool:
    """Whether NVIDIA Apex's fused weight-gradient kernel is here (PyPI's `apex` has none)."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None


def choose_backend(model: ModelConfig, arch: Architecture | None = None) -> Backend:
    """Choose Transformer Engine's layers if they can run here, else PyTorch's.

    Raises:
        ClusterError: FP8 is asked for, and this device, installation or model cannot do it.
    """
    if arch is not None and arch.sinks:
        # Transformer Engine's attention with sinks was not tried on packed sequences.
        if model.fp8 is not None:
            raise ClusterError(
                f"model.fp8: the attention of a {arch.family} has sinks, and is computed by "
                "PyTorch's layers, which do not train in FP8; leave it out"
            )
        return "local"
    available = has_transformer_engine()
    if model.fp8 is not None:
        _check_fp8(model.fp8, model.dtype, available)
    # Its attention over packed sequences has no float32 kernel.
    return "transformer_engine" if available and model.dtype != "float32" else "local"


def fuse_weight_gradients(chunks: Iterable[torch.nn.Module]) -> None:
    """Let Transformer Engine's layers add weight gradients to those of the micro-batches before in
    the product itself, in float32; wrapped for data parallelism, which makes these sums.

    Otherwise autograd gets each in the parameter's type, and a further kernel for each adds it up.
    """
    for module in (module for chunk in chunks for module in chunk.modules()):
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True


def drop_placeholders() -> None:
    """Free the tensors, as large as a weight of each shape, that Transformer Engine's layers have
    returned in place of gradients that they had added up, and would keep for good
    (`get_dummy_wgrad` of `transformer_engine/pytorch/module/base.py`, 2.11)."""
    base: Any = sys.modules.get("transformer_engine.pytorch.module.base")
    if base is not None:
        base._dummy_wgrads.clear()


def drop_fp8_copies(chunks: Iterable[torch.nn.Module]) -> None:
    """Free the FP8 copies of weights that Transformer Engine's layers keep between micro-batches.

    A layer that finds none makes them anew (`get_weight_workspace` of
    `transformer_engine/pytorch/module/base.py`, 2.11), as it does in the first micro-batch of every
    pass.
    """
    for module in (module for chunk in chunks for module in chunk.modules()):
        getattr(module, "_fp8_workspaces", {}).clear()


def check_offload(parallel: ParallelConfig) -> None:
    """Raises: ClusterError: activations are to be offloaded, and this rank has no GPU."""
    if parallel.offload_activations and not torch.cuda.is_available():
        raise ClusterError(
            "parallel.offload_activations: activations leave a GPU's memory, and this rank has no "
            "GPU; leave it out"
        )


def check_moments(optimizer: OptimizerConfig | None) -> None:
    """Raises: ClusterError: moments are to be in bfloat16, and Transformer Engine's Adam, which
    alone keeps them so, is not here."""
    if optimizer is None or optimizer.moments == "float32":
        return
    if why := why_no_transformer_engine():
        raise ClusterError(
            f"optimizer.moments = {optimizer.moments} needs Transformer Engine's Adam, and cannot "
            f"have it here ({why}); choose float32, or {_HOW_TO_GET_TE}"
        )


def _check_fp8(fp8: Fp8Config, dtype: str, available: bool) -> None:
    if not torch.cuda.is_available():
        raise ClusterError(
            "model.fp8: FP8 needs a GPU, and this rank has none; remove model.fp8 to train in "
            "model.dtype"
        )
    if not available:
        raise ClusterError(
            "model.fp8: Transformer Engine is not installed, or in a version that this "
            f"Megatron-core cannot use; {_HOW_TO_GET_TE}"
        )
    if dtype == "float32":
        raise ClusterError("model.fp8 with model.dtype = float32; choose model.dtype: bfloat16")
    here = torch.cuda.get_device_capability()
    needed = {"mxfp8": (10, 0), "blockwise": (9, 0)}.get(fp8.recipe, (8, 9))
    if here < needed:
        raise ClusterError(
            f"model.fp8.recipe = {fp8.recipe} needs compute capability {needed[0]}.{needed[1]}, "
            f"this GPU has {here[0]}.{here[1]}; choose another recipe or remove model.fp8"
        )
