"""What vLLM's multi-latent attention derives from the weights of a model."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper


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
        for module in model.modules():
            if isinstance(module, MultiHeadLatentAttentionWrapper):
                _rotate_slices(module)
        parameters = [p for layer in self._layers for p in layer.parameters(recurse=False)]
        self.derived = frozenset(map(id, parameters))
        """Identities of parameters that no tensor of the model is written into."""

    def derive(self) -> None:
        """Compute what is derived, once the weights have new values."""
        for layer in self._layers:
            layer.process_weights_after_loading(self._dtype)


def _rotate_slices(attention: MultiHeadLatentAttentionWrapper) -> None:
    """On CPUs vLLM's kernel of positions that are not scaled takes keys to lie one behind the
    other; here each is the end of a row that begins with a latent vector, which it overwrites."""
    rotary = attention.rotary_emb
    if rotary is not None and next(attention.parameters()).device.type == "cpu":
        rotary._forward_method = rotary.forward_native
