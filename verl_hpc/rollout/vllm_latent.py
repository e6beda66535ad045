"""What vLLM's multi-latent attention derives from the weights of a model."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper
from vllm.platforms import current_platform


class LatentLayers:
    """The layers of multi-latent attention of a model.

    They multiply with W_UV and W_UK_T, which are rows of kv_b_proj in another order: in its memory
    where a kernel takes them so, else in copies.

    Args:
        model: an engine's model.
        dtype: element type of its weights.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._layers = [m for m in model.modules() if isinstance(m, MLAAttention)]
        parameters = [p for layer in self._layers for p in layer.parameters(recurse=False)]
        self.derived = frozenset(map(id, parameters))
        """Identities of parameters that no tensor of the model is written into."""
        for module in model.modules():
            rotary = getattr(module, "rotary_emb", None)
            if isinstance(module, MultiHeadLatentAttentionWrapper) and rotary is not None:
                _rotate_parts(rotary)

    def derive(self) -> None:
        """Compute what is derived, once the weights have new values."""
        for layer in self._layers:
            layer.process_weights_after_loading(self._dtype)


def _rotate_parts(rotary: torch.nn.Module) -> None:
    """On CPUs compute rotary embeddings in PyTorch: the kernel takes the rotated part of a head, as
    it lies between others, for something else."""
    if current_platform.is_cpu():
        rotary._forward_method = rotary.forward_native
