"""vLLM's experts on CPUs, computed with unpacked weights.

vLLM's own kernel packs w13 and w2 in place when a model is loaded: shapes and strides stay the
same, so weights written into them later would be misread without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import gelu, silu
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


def keep_plain() -> None:
    """Make vLLM use this module's experts, of any size; call before building an engine."""
    experts: Any = CPUUnquantizedExperts
    experts.process_weights_after_loading = _leave
    experts._supports_grouped_gemm = staticmethod(_any_size)
    experts.apply = _apply


def _leave(self: Any, layer: torch.nn.Module) -> None:
    del self, layer


def _any_size(config: Any) -> tuple[bool, str | None]:
    """Accept any size, as a static method; vLLM's own kernel needs multiples of 32."""
    del config
    return True, None


def _oai(hidden: torch.Tensor) -> torch.Tensor:
    """gpt-oss's clamped SwiGLU, whose gate and up columns alternate."""
    gate, up = hidden[..., ::2].clamp(max=7.0), hidden[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(gate * 1.702)


def _gated(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    def activate(hidden: torch.Tensor) -> torch.Tensor:
        gate, up = hidden.chunk(2, -1)
        return function(gate) * up

    return activate


_ACTIVATIONS = {
    MoEActivation.SILU: _gated(silu),
    MoEActivation.GELU: _gated(gelu),
    MoEActivation.GELU_TANH: _gated(partial(gelu, approximate="tanh")),
    MoEActivation.SWIGLUOAI: _oai,
}
"""All that vLLM's own experts on CPUs have."""


def _apply(
    self: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: MoEActivation,
    global_num_experts: int,
    expert_map: torch.Tensor | None,
    apply_router_weight_on_input: bool = False,
    **_: Any,
) -> None:
    """Compute the weighted sum of the outputs of each token's experts.

    Args:
        output, hidden_states: (T, hidden).
        w1: (experts, 2 x ffn, hidden), gate rows over up rows, of this rank's experts.
        w2: (experts, hidden, ffn).
        topk_weights, topk_ids: (T, k).
        expert_map: (all experts,), the index of each among this rank's, -1 for others; None if this
            rank has all. vLLM sums over ranks.
        apply_router_weight_on_input: whether vLLM has multiplied the hidden states by the weights.
    """
    del global_num_experts
    activate = _ACTIVATIONS[activation]
    inner, outer = self.quant_config.w1_bias, self.quant_config.w2_bias
    output.zero_()
    mine = topk_ids if expert_map is None else expert_map[topk_ids]
    for expert in mine[mine >= 0].unique().tolist():
        tokens, places = (mine == expert).nonzero(as_tuple=True)
        hidden = hidden_states[tokens] @ w1[expert].t()
        if inner is not None:
            hidden += inner[expert]
        result = activate(hidden) @ w2[expert].t()
        if outer is not None:
            result += outer[expert]
        if not apply_router_weight_on_input:
            result = result * topk_weights[tokens, places, None].to(result.dtype)
        output.index_add_(0, tokens, result)
